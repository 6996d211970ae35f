/* evict.c - the arithmetic of replacement. */
#include "expert_node/evict.h"

#include "base/check.h"

static const double HEAT_MAX = 0x1p53; /* scores stay whole and within 64 bits */
static const double MARGIN = 1;        /* the choice that has just brought the newcomer here */

uint64_t en_evict_score(double heat, uint64_t idle)
{
    uint64_t recency = idle < EN_RECENCY_MAX ? EN_RECENCY_MAX - idle : 0;

    RT_ASSERT(heat >= 0);
    return (uint64_t)(heat < HEAT_MAX ? heat : HEAT_MAX) * (EN_RECENCY_MAX + 1) + recency;
}

bool en_evict_displaces(double newcomer, double victim)
{
    if (victim <= 0) return true;
    return newcomer > victim + MARGIN;
}
