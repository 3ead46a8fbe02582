/*
 * steady FILE [BEGUN [look]]   has the GPU fill a buffer, checks it, and stores to it, again and again until FILE is there;
 *                              makes BEGUN once that has gone well, and with `look` looks at the buffer alone from then on
 */
#include "fills.h"

#include <unistd.h>

/* Looks at the buffer, and at nothing else, until it changes. */
static int look_on(uint32_t value) {
    while (words[0] == value)
        ;
    must(campanile_device_check(device, NULL), "the device");
    fprintf(stderr, "the buffer has changed, and the device is there\n");
    return 1;
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
        if (argc > 3)
            return look_on(~value);
    }
    printf("%" PRIu32 " fills are right\n", value);
    return 0;
}
