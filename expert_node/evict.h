/* evict.h - which cached record gives way to which: frequency first, recency as tie.
 *
 * A record's score is its heat (decayed selections) times 256 plus how lately it was used, so that
 * recency decides only between records chosen about equally often. A newcomer must be clearly hotter
 * than the coldest cached record (25 % and 4 selections more): close rivals would otherwise take each
 * other's place at every use, and each exchange is a read of 20 MB. A record without any heat (loaded
 * at start to fill the slots) yields to every newcomer.
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
