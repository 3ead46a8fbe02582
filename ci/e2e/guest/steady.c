/*
 * steady FILE [BEGUN]      has the GPU fill a buffer, checks it, and stores to it, again and again until FILE is there;
 *                          makes BEGUN once that has gone well
 */
#include "fills.h"

#include <unistd.h>

int main(int argc, char **argv) {
    uint32_t value = 0;
    if (argc != 2 && argc != 3)
        return 2;
    set_up(CAMPANILE_MEMORY_VRAM);
    while (access(argv[1], F_OK) != 0) {
        fill(++value);
        check(value);
        for (uint32_t word = 0; word < BYTES / 4; word++)
            ((volatile uint32_t *)words)[word] = ~value;
        check(~value);
        if (value == 1 && argc == 3)
            fclose(fopen(argv[2], "w"));
    }
    printf("%" PRIu32 " fills are right\n", value);
    return 0;
}
