/* measure.h - short measurements of this machine: memory, attention, disk. For plan and doctor.
 *
 * Each takes about half a second and a bounded amount of memory, and gives the best of some repeats: what
 * the machine can do when nothing else runs. They answer "what to expect", not "what was reached".
 *
 * Threads: main. */
#ifndef APP_MEASURE_H
#define APP_MEASURE_H

#include "model/container/container.h"

/* Bytes/s that `threads` threads read from RAM together (kernels/measure.h: processor time, so that a
 * neighbour's work counts little), over 256 MiB or an eighth of what is there; 0 when that is too little to
 * be more than a cache's speed. RT_ENOMEM. */
RT_MUST_CHECK rt_status app_measure_ram(uint32_t threads, double *bytes_s, rt_err *err);

/* flop/s of attention scores and values of this model's shape, by `threads` threads that share the
 * heads; 0 when there is too little memory to try. RT_ENOMEM. */
RT_MUST_CHECK rt_status app_measure_attention(const md_config *config, uint32_t threads,
                                              double *flop_s, rt_err *err);

typedef struct {
    double bytes_s; /* 0: nothing was there to read */
    bool direct; /* by O_DIRECT; false: the filesystem refuses it, and the page cache may flatter */
    uint64_t reads;   /* of read_bytes each on average */
    uint64_t bytes;   /* read in all */
    uint32_t damaged; /* records whose bytes are not those of the manifest */
    char what[160];   /* what was read, or the first damaged record */
} app_disk_rate;

/* Expert records of a container, whole, spread over its packs; hashes are checked outside of the timing.
 *   Errors  RT_EIO  the disk gave an error;  RT_ENOMEM */
RT_MUST_CHECK rt_status app_measure_container(const md_container *container, app_disk_rate *out,
                                              rt_err *err);

/* The largest file of dir that has at least eight reads of read_bytes; bytes_s 0 when there is none. */
RT_MUST_CHECK rt_status app_measure_largest_file(const char *dir, uint64_t read_bytes,
                                                 app_disk_rate *out, rt_err *err);

/* A file of file_bytes, or what a slow disk takes in 1.5 s, written into dir for the purpose. It has no name while it exists, so that nothing
 * is left of it however this ends. RT_ENOSPACE, RT_EIO. */
RT_MUST_CHECK rt_status app_measure_scratch_file(const char *dir, uint64_t file_bytes,
                                                 uint64_t read_bytes, app_disk_rate *out,
                                                 rt_err *err);

#endif
