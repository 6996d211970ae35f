/* profile_output.c - phases by falling time, with the bytes they had to touch. */
#include "app/profile_output.h"

enum { SENTENCE_BYTES = 240 };

static const double MEMORY_BOUND = 0.5; /* of memory's rate; below it, arithmetic is the limit */

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double rate(const rt_phase_count *phase)
{
    return phase->ns > 0 ? (double)phase->bytes / seconds(phase->ns) : 0;
}

static double share(const app_profile_part *part, const rt_phase_count *phase)
{
    return part->counts.wall_ns > 0 ? (double)phase->ns / (double)part->counts.wall_ns : 0;
}

/* What a half reads from memory; of a record that comes from disk the read and the use are two. */
static uint64_t memory_bytes(const app_profile_part *part)
{
    uint64_t bytes = 0;

    for (int i = 0; i < RT_PHASE_COUNT; i++)
        if (i != RT_PHASE_DISK) bytes += part->counts.phase[i].bytes;
    return bytes;
}

/* Phases that took time, longest first; returns how many. */
static uint32_t by_time(const app_profile_part *part, rt_phase order[RT_PHASE_COUNT])
{
    uint32_t count = 0;

    for (int i = 0; i < RT_PHASE_COUNT; i++) {
        uint32_t at = count;

        if (part->counts.phase[i].ns == 0) continue;
        for (; at > 0 && part->counts.phase[order[at - 1]].ns < part->counts.phase[i].ns; at--)
            order[at] = order[at - 1];
        order[at] = (rt_phase)i;
        count++;
    }
    return count;
}

void app_profile_sentence(const app_profile_part *part, double read_bytes_s, char *text,
                          size_t text_bytes)
{
    rt_phase order[RT_PHASE_COUNT];
    const rt_phase_count *phase;
    char speed[100] = "";

    if (by_time(part, order) == 0) {
        snprintf(text, text_bytes, "no time passed");
        return;
    }
    phase = &part->counts.phase[order[0]];
    if (phase->bytes > 0 && (order[0] == RT_PHASE_DISK || read_bytes_s <= 0))
        snprintf(speed, sizeof(speed), " at %.1f GB/s", rate(phase) * 1e-9);
    else if (phase->bytes > 0 && rate(phase) < MEMORY_BOUND * read_bytes_s)
        snprintf(speed, sizeof(speed), ", in arithmetic (%.1f GB/s of the %.1f that memory gives)",
                 rate(phase) * 1e-9, read_bytes_s * 1e-9);
    else if (phase->bytes > 0)
        snprintf(speed, sizeof(speed), " at %.1f GB/s of the %.1f that memory gives",
                 rate(phase) * 1e-9, read_bytes_s * 1e-9);
    snprintf(text, text_bytes, "the wall is %s: %.0f %% of the time%s", rt_phase_text(order[0]),
             100 * share(part, phase), speed);
}

/* ---- for people ---- */

/* How far the half was from what memory gives, and whether the processors were ours. */
static void print_efficiency(const app_profile_part *part, const app_profile_report *report,
                             FILE *out)
{
    double wall = seconds(part->counts.wall_ns),
           thread = seconds(part->processor_ns) / report->threads;
    double read = (double)memory_bytes(part);

    if (wall <= 0 || thread <= 0) return;
    if (report->threads == 1)
        fprintf(out, "moesaic: its thread had");
    else
        fprintf(out, "moesaic: each of %u threads had", report->threads);
    fprintf(out, " a processor for %.0f %% of the time\n", 100 * thread / wall);
    if (report->read_bytes_s <= 0) return;
    read /= report->read_bytes_s;
    fprintf(
        out,
        "moesaic: reading these bytes at the %.1f GB/s of this memory would take %.0f %% of the "
        "time, %.0f %% of the processor time\n",
        report->read_bytes_s * 1e-9, 100 * read / wall, 100 * read / thread);
}

static void print_part(const app_profile_part *part, double read_bytes_s, const char *name,
                       FILE *out)
{
    double tokens = part->tokens;
    rt_phase order[RT_PHASE_COUNT];
    uint32_t count = by_time(part, order);
    char sentence[SENTENCE_BYTES];

    if (part->tokens == 0) return;
    fprintf(out, "moesaic: profile of %s: %u tokens in %.3f s, %.3f ms and %.1f MB each\n", name,
            part->tokens, seconds(part->counts.wall_ns),
            seconds(part->counts.wall_ns) * 1e3 / tokens,
            (double)memory_bytes(part) * 1e-6 / tokens);
    fprintf(out, "  %-22s %10s %8s %10s %8s\n", "phase", "ms/token", "share", "MB/token", "GB/s");
    for (uint32_t i = 0; i < count; i++) {
        const rt_phase_count *phase = &part->counts.phase[order[i]];

        fprintf(out, "  %-22s %10.3f %6.1f %%", rt_phase_name(order[i]),
                seconds(phase->ns) * 1e3 / tokens, 100 * share(part, phase));
        if (phase->bytes > 0)
            fprintf(out, " %10.2f %8.2f", (double)phase->bytes * 1e-6 / tokens, rate(phase) * 1e-9);
        fprintf(out, "\n");
    }
    app_profile_sentence(part, read_bytes_s, sentence, sizeof(sentence));
    fprintf(out, "moesaic: %s\n", sentence);
}

void app_profile_print(const app_profile_report *report, FILE *out)
{
    print_part(&report->prefill, report->read_bytes_s, "prefill", out);
    print_part(&report->decode, report->read_bytes_s, "decode", out);
    if (report->decode.tokens > 0) print_efficiency(&report->decode, report, out);
    if (report->remote_nodes > 0)
        fprintf(out,
                "moesaic: the other %u node%s computed %.3f s and waited %.3f s for disks, all "
                "together\n",
                report->remote_nodes, report->remote_nodes == 1 ? "" : "s",
                seconds(report->remote_compute_ns), seconds(report->remote_disk_ns));
}

/* ---- for programs ---- */

static json_t *part_json(const app_profile_part *part, double read_bytes_s)
{
    json_t *phases;
    char sentence[SENTENCE_BYTES];

    if (part->tokens == 0) return json_null();
    phases = json_object();
    for (int i = 0; i < RT_PHASE_COUNT; i++) {
        const rt_phase_count *phase = &part->counts.phase[i];

        json_object_set_new(phases, rt_phase_name((rt_phase)i),
                            json_pack("{s:f, s:I, s:f}", "s", seconds(phase->ns), "bytes",
                                      (json_int_t)phase->bytes, "gb_s", rate(phase) * 1e-9));
    }
    app_profile_sentence(part, read_bytes_s, sentence, sizeof(sentence));
    return json_pack("{s:i, s:f, s:f, s:I, s:o, s:s}", "tokens", (int)part->tokens, "wall_s",
                     seconds(part->counts.wall_ns), "processor_s", seconds(part->processor_ns),
                     "bytes", (json_int_t)memory_bytes(part), "phases", phases, "sentence",
                     sentence);
}

json_t *app_profile_json(const app_profile_report *report)
{
    return json_pack(
        "{s:i, s:o, s:o, s:o, s:{s:i, s:f, s:f}}", "threads", (int)report->threads, "prefill",
        part_json(&report->prefill, report->read_bytes_s), "decode",
        part_json(&report->decode, report->read_bytes_s), "read_gb_s",
        report->read_bytes_s > 0 ? json_real(report->read_bytes_s * 1e-9) : json_null(), "remote",
        "nodes", (int)report->remote_nodes, "compute_s", seconds(report->remote_compute_ns),
        "disk_wait_s", seconds(report->remote_disk_ns));
}
