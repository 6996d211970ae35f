/* profile.c - one current phase, one clock. */
#include "base/profile.h"

#include "base/check.h"

#include <string.h>

const char *rt_phase_name(rt_phase phase)
{
    static const char *const names[] = {
#define RT_PHASE_NAME(id_, name_, text_) name_,
        RT_PHASES(RT_PHASE_NAME)
#undef RT_PHASE_NAME
    };

    RT_ASSERT((unsigned)phase < RT_PHASE_COUNT);
    return names[phase];
}

const char *rt_phase_text(rt_phase phase)
{
    static const char *const texts[] = {
#define RT_PHASE_TEXT(id_, name_, text_) text_,
        RT_PHASES(RT_PHASE_TEXT)
#undef RT_PHASE_TEXT
    };

    RT_ASSERT((unsigned)phase < RT_PHASE_COUNT);
    return texts[phase];
}

void rt_profile_start(rt_profile *profile, const rt_clock *clock)
{
    memset(profile, 0, sizeof(*profile));
    profile->clock = *clock;
    profile->since_ns = rt_clock_now(clock);
    profile->begin_ns = profile->since_ns;
}

/* Gives the time since the last count to the current phase. */
static void count(rt_profile *profile)
{
    uint64_t now = rt_clock_now(&profile->clock);

    profile->counts.phase[profile->current].ns += now - profile->since_ns;
    profile->since_ns = now;
}

void rt_profile_take(rt_profile *profile, rt_profile_counts *out)
{
    count(profile);
    *out = profile->counts;
    out->wall_ns = profile->since_ns - profile->begin_ns;
    profile->begin_ns = profile->since_ns;
    memset(&profile->counts, 0, sizeof(profile->counts));
}

rt_phase rt_profile_enter(rt_profile *profile, rt_phase phase)
{
    rt_phase before;

    if (profile == NULL) return RT_PHASE_OTHER;
    RT_ASSERT((unsigned)phase < RT_PHASE_COUNT);
    before = profile->current;
    count(profile);
    profile->current = phase;
    return before;
}

uint64_t rt_profile_mark(rt_profile *profile)
{
    if (profile == NULL) return 0;
    count(profile);
    return profile->counts.phase[profile->current].ns;
}

void rt_profile_split(rt_profile *profile, uint64_t mark, rt_phase to, uint64_t part,
                      uint64_t whole)
{
    rt_phase_count *from;
    uint64_t moved;

    if (profile == NULL || part == 0) return;
    RT_ASSERT(part <= whole && (unsigned)to < RT_PHASE_COUNT);
    count(profile);
    from = &profile->counts.phase[profile->current];
    RT_ASSERT(from->ns >= mark && from->bytes >= part);
    moved = (uint64_t)((double)(from->ns - mark) * ((double)part / (double)whole));
    if (moved > from->ns - mark) moved = from->ns - mark;
    from->ns -= moved;
    from->bytes -= part;
    profile->counts.phase[to].ns += moved;
    profile->counts.phase[to].bytes += part;
}

uint64_t rt_profile_total_ns(const rt_profile_counts *counts)
{
    uint64_t total = 0;

    for (int i = 0; i < RT_PHASE_COUNT; i++)
        total += counts->phase[i].ns;
    return total;
}
