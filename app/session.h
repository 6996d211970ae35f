/* session.h - the roles of one process put together: container, memory, links, map, experts, engine.
 *
 * Alone, a session is an attention node and an expert node joined by the inproc link. Under mpirun rank
 * 0 is the attention node (with experts of its own when asked) and the others are expert nodes; opening
 * is then a handshake that refuses ranks with another model or build. Node i of the map is rank i.
 *
 * open -> (rank 0: look at the prompt) -> load -> rank 0: generate; others: serve -> close
 *
 * Threads: main. */
#ifndef APP_SESSION_H
#define APP_SESSION_H

#include "app/model_options.h"
#include "attention_node/engine.h"
#include "model/text/tokenizer.h"

typedef struct app_session app_session;

typedef struct {
    const char *model_dir;
    app_model_options options;
    bool profile; /* keep a profile of this process */
} app_session_spec;

/* Opens the container, meets the other ranks and plans the memory; nothing is loaded yet, so that what
 * is wrong with a prompt or an option is said at once.
 *   Errors  those of the parts; RT_ENOMEM the plan does not fit (every line of it is named).
 *           Rank 0 tells the other ranks why it ends before it returns. */
RT_MUST_CHECK rt_status app_session_open(const app_session_spec *spec, app_session **out,
                                         rt_err *err);

/* Loads weights and experts. On rank 0 (or alone) it returns when every node is ready.
 *   Errors  those of the parts. On the other ranks RT_ECANCELED means that rank 0 ended the job and has
 *           told the user why.  The session is still to be closed. */
RT_MUST_CHECK rt_status app_session_load(app_session *session, rt_err *err);

/* Ranks other than 0: answers frames until rank 0 ends the job. */
RT_MUST_CHECK rt_status app_session_serve(app_session *session, rt_err *err);
bool app_session_is_head(const app_session *session);

/* Ends the job: the other ranks are told, with the reason when status is not RT_OK. NULL allowed. */
void app_session_close(app_session *session, rt_status status, const char *reason);

an_engine *app_session_engine(app_session *session); /* once loaded */
const md_container *app_session_container(const app_session *session);
uint32_t app_session_context(const app_session *session);
uint32_t app_session_chunk(const app_session *session);
uint32_t app_session_nodes(const app_session *session); /* processes */
rt_team *app_session_team(const app_session *session);
rt_profile *app_session_profile(app_session *session); /* NULL: none is kept */

/* What the expert nodes did since the session was opened, summed over them. */
typedef struct {
    uint64_t hits, reads, read_bytes;
    uint64_t hits_pinned, ahead_reads, ahead_useful; /* expert_node/store.h */
    uint64_t remote_compute_ns, remote_wait_ns; /* of the other processes: computing; for disks */
} app_expert_stats;

RT_MUST_CHECK rt_status app_session_expert_stats(app_session *session, app_expert_stats *out,
                                                 rt_err *err);

/* The name of a node for messages: "rank 2 (host a, pid 17)", "this process". */
const char *app_session_node_name(const app_session *session, uint32_t node);

#endif
