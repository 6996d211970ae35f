/* evict.h - which cached record gives way to which: frequency first, recency as tie.
 *
 * A record's score is its heat (decayed selections) times 256 plus how lately it was used, so that
 * recency decides only between records chosen about equally often. A newcomer displaces the
 * coldest cached record when it is hotter by more than the choice that has just brought it here. It is read
 * in any case, into that slot or into another, so that an exchange costs nothing; a wider margin only
 * keeps colder records longer (docs/DECISIONS.md). A record without any heat (loaded at start to fill the
 * slots) yields to every newcomer.
 *
 * An LRU was rejected: 75 layers are visited in turn, so what was used last is no guess of what is
 * used next; the hottest half of the experts takes 82 % of the choices (docs/performance.md).
 *
 * Pure. Threads: any. */
#ifndef EXPERT_NODE_EVICT_H
#define EXPERT_NODE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

enum { EN_RECENCY_MAX = 255 };

/* idle: frames of its layer since the record was used last. */
uint64_t en_evict_score(double heat, uint64_t idle);

bool en_evict_displaces(double newcomer, double victim);

#endif
