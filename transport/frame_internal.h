/* frame_internal.h - the one number that frame.c and dispatch.c share. */
#ifndef TRANSPORT_FRAME_INTERNAL_H
#define TRANSPORT_FRAME_INTERNAL_H

enum { TR_GROUP_UNIT = 16 }; /* every activation group is a multiple of it (numerics R2) */

#endif
