/* look_ahead.c - the trial. */
#include "attention_node/look_ahead.h"

static const double GAIN = 0.98; /* of the time without hints that they must stay below */

void an_look_ahead_init(an_look_ahead_trial *trial, an_look_ahead mode)
{
    *trial = (an_look_ahead_trial){.mode = mode, .trying = mode == AN_LOOK_AHEAD_AUTO};
}

bool an_look_ahead_wants(const an_look_ahead_trial *trial)
{
    if (trial->mode != AN_LOOK_AHEAD_AUTO) return trial->mode == AN_LOOK_AHEAD_ON;
    return trial->trying ? trial->window % 2 == 1 : trial->on;
}

static void decide(an_look_ahead_trial *trial)
{
    const uint64_t steps = (uint64_t)(AN_LOOK_AHEAD_WINDOW - 1) * (AN_LOOK_AHEAD_WINDOWS / 2);

    trial->verdict_ns[0] = trial->ns[0] / steps;
    trial->verdict_ns[1] = trial->ns[1] / steps;
    trial->on = (double)trial->ns[1] < GAIN * (double)trial->ns[0];
    trial->trying = false;
    trial->step = 0;
}

static void end_window(an_look_ahead_trial *trial)
{
    trial->ns[trial->window % 2] -= trial->slowest;
    trial->slowest = 0;
    trial->step = 0;
    if (++trial->window == AN_LOOK_AHEAD_WINDOWS) decide(trial);
}

void an_look_ahead_step(an_look_ahead_trial *trial, uint64_t ns)
{
    if (trial->mode != AN_LOOK_AHEAD_AUTO) return;
    trial->step++;
    if (!trial->trying) {
        if (trial->step < AN_LOOK_AHEAD_AGAIN) return;
        trial->trying = true;
        trial->step = trial->window = 0;
        trial->ns[0] = trial->ns[1] = trial->slowest = 0;
        return;
    }
    if (trial->step == 1) return; /* it still lives on what the window before has read */
    trial->ns[trial->window % 2] += ns;
    if (ns > trial->slowest) trial->slowest = ns;
    if (trial->step == AN_LOOK_AHEAD_WINDOW + 1) end_window(trial);
}
