/* fuzz_control.c - control messages as a peer may send them.
 *
 * The first byte chooses: the rest is a whole frame; or a payload that is sealed here, so that the
 * decoder is reached. What decodes is encoded again and must decode to the same. */
#include "transport/control.h"
#include "transport/frame.h"
#include "transport/link_inproc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER_BYTES = 64 };

static void encode_again(const tr_control *message)
{
    static tr_link *a, *b;
    static tr_control again;
    tr_buf *buf;

    if (a == NULL && tr_inproc_create(1 << 20, &a, &b, NULL) != RT_OK) abort();
    if (tr_control_encode(a, message, &buf) != RT_OK) abort();
    if (tr_control_decode(buf->data, buf->length, &again, NULL) != RT_OK) abort();
    if (memcmp(&again, message, sizeof(again)) != 0) abort();
    tr_buf_release(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tr_control message;
    const tr_frame_header head = {.type = TR_CONTROL};
    tr_hello mine = {.protocol_min = 1, .protocol_max = 1, .numerics_id = 1};
    size_t payload, bytes;
    uint8_t *frame;

    if (size < 2 || size > TR_CONTROL_MAX) return 0;
    payload = size - 1;
    bytes = data[0] % 2 == 0 ? payload : HEADER_BYTES + payload;
    frame = malloc(bytes);
    if (frame == NULL) return 0;
    if (data[0] % 2 == 0) {
        memcpy(frame, data + 1, payload);
    } else {
        memcpy(frame + HEADER_BYTES, data + 1, payload);
        tr_frame_seal(frame, bytes, &head);
    }
    mine.role = TR_ROLE_ATTENTION;
    if (tr_control_decode(frame, bytes, &message, NULL) == RT_OK) {
        encode_again(&message);
        if (message.type == TR_CONTROL_HELLO &&
            tr_hello_check(&mine, &message.hello, NULL) == RT_OK)
            (void)tr_hello_protocol(&mine, &message.hello);
    }
    free(frame);
    return 0;
}
