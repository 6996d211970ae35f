/* link_contract.h - what every link backend must do, as one set of tests run over each of them.
 *
 * The tests hold one end; behind every peer stands a link_server, in the same thread (inproc, as its
 * driver) or in another process (mpi, as its loop). The server sends frames back or makes some up, so
 * that the tests need to know nothing of where it runs. */
#ifndef TESTS_SUPPORT_LINK_CONTRACT_H
#define TESTS_SUPPORT_LINK_CONTRACT_H

#include "transport/link.h"

typedef struct {
    tr_link *link;         /* borrowed */
    const uint32_t *peers; /* [peer_count] those with a server behind; borrowed */
    uint32_t peer_count;
    size_t pool_bytes; /* bound of the pool that link acquires from */
} link_contract;

/* Runs the tests as one cmocka group; returns how many failed. */
int link_contract_run(const char *group, const link_contract *contract);

/* Tells the servers that are loops to end. */
void link_contract_quit(const link_contract *contract);

typedef struct link_server link_server;

link_server *link_server_create(tr_link *link); /* link borrowed */
void link_server_free(link_server *server);

/* Handles one event and goes on with answers that had to wait; false: told to end, or the link was
 * canceled. */
bool link_server_step(link_server *server, uint64_t timeout_ns);

/* tr_inproc_driver: steps until nothing waits. context is the link_server. */
void link_server_drive(void *context);

#endif
