/* replay.c - runs a fuzz target without libFuzzer: each seed file, and mutations of it from a fixed
 * generator, so that every build of every compiler meets hostile input. The coverage-guided runs are
 * the target `fuzz`. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MUTATIONS = 1500, SEED_MAX = 1 << 20 };

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* One to eight edits: a bit, a byte, a run of bytes, a cut, a copied block, an extreme integer. */
static size_t mutate(uint8_t *data, size_t size)
{
    static const uint64_t extremes[] = {0,      1,          0x7f,       0xff,      0x7fff,
                                        0xffff, 0x7fffffff, 0xffffffff, UINT64_MAX};

    for (uint64_t edits = 1 + next_random() % 8; edits > 0 && size > 0; edits--) {
        size_t at = next_random() % size;
        size_t length = 1 + next_random() % 16;

        if (length > size - at) length = size - at;
        switch (next_random() % 6) {
        case 0:
            data[at] = (uint8_t)(data[at] ^ (1u << next_random() % 8));
            break;
        case 1:
            data[at] = (uint8_t)next_random();
            break;
        case 2:
            memset(data + at, (int)(next_random() % 256), length);
            break;
        case 3:
            size = at;
            break;
        case 4:
            memmove(data + at, data + next_random() % (size - length + 1), length);
            break;
        default:
            if (length > 8) length = 8;
            memcpy(data + at, &extremes[next_random() % (sizeof(extremes) / sizeof(extremes[0]))],
                   length);
            break;
        }
    }
    return size;
}

/* The copy has exactly `size` bytes, so that ASan sees a read past the end. */
static void run_one(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);

    if (copy == NULL) return;
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

int main(int argc, char **argv)
{
    static uint8_t seed[SEED_MAX], work[SEED_MAX];
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    size_t seeds = 0;

    if (dir == NULL) {
        fprintf(stderr, "replay: no folder of seeds %s\n", argc == 2 ? argv[1] : "given");
        return 1;
    }
    run_one(seed, 0);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[4096];
        FILE *file;
        size_t size;

        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        file = fopen(path, "rb");
        if (file == NULL) continue;
        size = fread(seed, 1, sizeof(seed), file);
        fclose(file);
        seeds++;
        run_one(seed, size);
        for (int i = 0; i < MUTATIONS; i++) {
            memcpy(work, seed, size);
            run_one(work, mutate(work, size));
        }
    }
    closedir(dir);
    printf("%zu seeds, %d mutations each\n", seeds, MUTATIONS);
    return seeds > 0 ? 0 : 1;
}
