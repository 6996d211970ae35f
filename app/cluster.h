/* cluster.h - the handshake of an mpirun job: who is there, who holds what, how it ends.
 *
 * Rank 0 (head) waits for every rank's HELLO, refuses another model, build or protocol with both
 * values named, and answers with WELCOME: the map's spec, from which every rank builds the same map.
 * Each node says READY once its share is loaded. The job ends with STOP from the head.
 *
 * Failure is told, never guessed: a rank that cannot go on sends REJECT with its reason to the head,
 * and the head to everyone. Waiting is bounded where nobody has to load or type anything.
 *
 * Threads: main. */
#ifndef APP_CLUSTER_H
#define APP_CLUSTER_H

#include "model/container/container.h"
#include "placement/map.h"
#include "transport/control.h"
#include "transport/link.h"

typedef struct app_cluster app_cluster;

typedef struct {
    uint64_t hits, reads, read_bytes, wait_ns, compute_ns;
    uint64_t hits_pinned, ahead_reads, ahead_useful;
} app_node_stats;

/* Starts MPI. RT_EUNSUPPORTED (built without), RT_EPEER. */
RT_MUST_CHECK rt_status app_cluster_create(app_cluster **out, rt_err *err);
/* Ends MPI: in order when clean, at once after a loss. NULL allowed. */
void app_cluster_free(app_cluster *cluster);

uint32_t app_cluster_rank(const app_cluster *cluster);
uint32_t app_cluster_size(const app_cluster *cluster);
tr_link *app_cluster_link(const app_cluster *cluster);
const char *app_cluster_name(const app_cluster *cluster, uint32_t rank); /* with host and pid */

/* Head: gathers the HELLOs.
 *   Errors  RT_EPEER  a rank left, or did not say hello in time (named);  RT_EINVAL  refused (both
 *           values named);  what a rank reported;  RT_ECANCELED */
RT_MUST_CHECK rt_status app_cluster_gather(app_cluster *cluster, const md_container *container,
                                           rt_err *err);
/* Head: welcomes everyone who said hello; they begin to load. welcome->node_index is set per rank here.
 * RT_EPEER: a rank is gone. */
RT_MUST_CHECK rt_status app_cluster_welcome(app_cluster *cluster, const tr_welcome *welcome,
                                            rt_err *err);
/* Head: waits until every node with a share is ready; progress on stderr after two seconds. */
RT_MUST_CHECK rt_status app_cluster_wait_ready(app_cluster *cluster, rt_err *err);
/* Head: asks every node for its counters and adds them up. Only between steps. */
RT_MUST_CHECK rt_status app_cluster_stats(app_cluster *cluster, app_node_stats *out, rt_err *err);
/* Head: ends the job, with the reason when status is not RT_OK. Never fails. */
void app_cluster_stop(app_cluster *cluster, rt_status status, const char *reason);

/* Node: says hello. */
RT_MUST_CHECK rt_status app_cluster_hello(app_cluster *cluster, const md_container *container,
                                          rt_err *err);
/* Node: waits for the welcome, without a deadline: the head may be reading its prompt from a terminal.
 * RT_ECANCELED with an empty text when the head ended the job and has told the user why. */
RT_MUST_CHECK rt_status app_cluster_join(app_cluster *cluster, tr_welcome *out, rt_err *err);
RT_MUST_CHECK rt_status app_cluster_ready(app_cluster *cluster, const tr_ready *ready, rt_err *err);
/* Node: tells the head why this rank cannot go on. Never fails. */
void app_cluster_refuse(app_cluster *cluster, rt_status status, const char *text);

/* Node: what to do with a frame that is not control. Takes buf. */
typedef rt_status (*app_frame_fn)(void *context, uint32_t peer, tr_buf *buf);
typedef void (*app_stats_fn)(void *context, app_node_stats *out);

/* Node: handles frames until STOP. RT_EPEER when the head is gone; RT_ECANCELED on a signal (the text
 * names whom it waited for) and when the head ended the job because of an error (the text is its
 * reason). */
RT_MUST_CHECK rt_status app_cluster_serve(app_cluster *cluster, app_frame_fn frame,
                                          app_stats_fn stats, void *context, rt_err *err);

#endif
