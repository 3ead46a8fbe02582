/*
 * What a process may do to itself while the GPU has its pages, and nobody else may notice.
 *
 *   misuse fork     children share the pages, write to them, end in several ways; the parent works on
 *   misuse unmap    unmaps a buffer that the GPU goes on writing to, then all others, and dies over it (SIGSEGV)
 *   misuse hold     unmaps a buffer that the GPU goes on writing to, and stays
 */
#include "fills.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int with_children(void) {
    pid_t children[4];
    fill(1);
    check(1);
    for (int child = 0; child < 4; child++) {
        children[child] = fork();
        if (children[child] < 0)
            return 1;
        if (children[child] > 0)
            continue;
        /* Shared, as memory of a render node is. */
        check(1);
        if (child == 0)
            _exit(0);
        if (child == 1)
            munmap((void *)words, BYTES);
        if (child == 2)
            execl("/bin/true", "true", (char *)NULL);
        for (;;)
            pause();
    }
    int status;
    if (waitpid(children[0], &status, 0) < 0 || status != 0) {
        fprintf(stderr, "misuse: a child does not see its parent's pages\n");
        return 1;
    }
    waitpid(children[2], &status, 0);
    for (uint32_t value = 2; value < 200; value++) {
        fill(value);
        check(value);
        if (value == 100)
            kill(children[1], SIGKILL);
    }
    kill(children[3], SIGKILL);
    while (wait(NULL) > 0)
        ;
    fill(200);
    check(200);
    puts("the parent's results are right, with four children");
    return 0;
}

/* Unmaps every shared memory of this process that is one of the driver's. */
static int unmap_all(void) {
    char line[512];
    int count = 0;
    /* Read whole before anything goes. */
    static struct {
        void *start;
        size_t size;
    } found[256];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && count < 256 && fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (strstr(line, "/memfd:") && sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2) {
            found[count].start = (void *)start;
            found[count++].size = end - start;
        }
    }
    for (int at = 0; at < count; at++)
        munmap(found[at].start, found[at].size);
    return count;
}

static int without_pages(int stays) {
    fill(7);
    check(7);
    if (munmap((void *)words, BYTES) != 0)
        return 1;
    /* The pages are the GPU's until the process ends or destroys the buffer. */
    for (uint32_t value = 8; value < 20; value++)
        fill(value);
    puts("the GPU still writes to what was unmapped");
    fflush(stdout);
    while (stays)
        pause();
    printf("unmapped %d more\n", unmap_all());
    fflush(stdout);
    fill(21);
    puts("nothing happened");
    return 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "fork";
    set_up(CAMPANILE_MEMORY_GUEST);
    return strcmp(what, "fork") == 0 ? with_children() : without_pages(strcmp(what, "hold") == 0);
}
