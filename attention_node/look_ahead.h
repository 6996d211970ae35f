/* look_ahead.h - whether foretelling the next layer's experts pays, found out by trying.
 *
 * A layer's router applied to the state before the layer above it names about 72 % of the experts right;
 * a node that is told so can read them from its disk early. But a wrong guess costs a read, and the
 * router costs time on the attention node: related engines lost speed by it on slow disks. So in AUTO
 * windows of steps with and without hints alternate, the slowest step of each window is left out, and
 * hints stay on only if they made steps at least 2 % faster. Tried anew every now and then, since
 * the cache fills and topics change. No token depends on it.
 *
 * Pure: time is passed in. Threads: the engine's owner. */
#ifndef ATTENTION_NODE_LOOK_AHEAD_H
#define ATTENTION_NODE_LOOK_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { AN_LOOK_AHEAD_OFF, AN_LOOK_AHEAD_ON, AN_LOOK_AHEAD_AUTO } an_look_ahead;

enum {
    AN_LOOK_AHEAD_ROWS = 8,     /* steps of more rows want most experts anyway: no hints */
    AN_LOOK_AHEAD_WINDOW = 8,   /* steps, and one before them that is not counted */
    AN_LOOK_AHEAD_WINDOWS = 8,  /* of a trial, half of them with hints */
    AN_LOOK_AHEAD_AGAIN = 2048, /* steps until the next trial */
};

typedef struct {
    an_look_ahead mode;
    bool trying;            /* AUTO: a trial is under way */
    bool on;                /* AUTO: the last verdict */
    uint32_t step, window;  /* of the trial; or step since the verdict */
    uint64_t slowest;       /* of the window */
    uint64_t ns[2];         /* counted steps without, with hints */
    uint64_t verdict_ns[2]; /* of the last trial, for one step */
} an_look_ahead_trial;

void an_look_ahead_init(an_look_ahead_trial *trial, an_look_ahead mode);

/* Whether the next step is to give hints. */
bool an_look_ahead_wants(const an_look_ahead_trial *trial);

/* A step that wants could have applied to took ns for each of its rows. */
void an_look_ahead_step(an_look_ahead_trial *trial, uint64_t ns);

#endif
