/*
 * steady FILE [BEGUN [look|hold]]   has the GPU fill a buffer, checks it, and stores to it, again and again until FILE is there;
 *                                   makes BEGUN once that has gone well; with `look` it looks at the buffer alone from then on, with `hold`
 *                                   it does nothing until there is a file called go, and then goes on
 */
#include "fills.h"

#include <string.h>
#include <unistd.h>

/* Looks at the buffer, and at nothing else, until it changes. */
static int look_on(uint32_t value) {
    while (words[0] == value)
        ;
    must(campanile_device_check(device, NULL), "the device");
    fprintf(stderr, "the buffer has changed, and the device is there\n");
    return 1;
}

/* Does nothing, and then finds what it left, and has the GPU fill the buffer again. */
static void hold(uint32_t left) {
    while (access("go", F_OK) != 0)
        usleep(20000);
    check(left);
    fill(~left);
    check(~left);
}

int main(int argc, char **argv) {
    uint32_t value = 0;
    if (argc < 2 || argc > 4)
        return 2;
    set_up(CAMPANILE_MEMORY_VRAM);
    while (access(argv[1], F_OK) != 0) {
        fill(++value);
        check(value);
        for (uint32_t word = 0; word < BYTES / 4; word++)
            ((volatile uint32_t *)words)[word] = ~value;
        check(~value);
        if (value == 1 && argc > 2)
            fclose(fopen(argv[2], "w"));
        if (argc > 3 && strcmp(argv[3], "look") == 0)
            return look_on(~value);
        if (value == 1 && argc > 3)
            hold(~value);
    }
    printf("%" PRIu32 " fills are right\n", value);
    return 0;
}
