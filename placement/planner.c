/* planner.c - bytes to places, places to hit rate, hit rate to seconds. */
#include "placement/planner.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

enum { TRANSIT_DIVISOR = 8 };

static const char *const term_names[PL_TERM_COUNT] = {
    [PL_TERM_DENSE] = "dense weights from memory",
    [PL_TERM_EXPERTS] = "experts from memory",
    [PL_TERM_DISK] = "experts from the disk",
    [PL_TERM_ATTENTION] = "attention arithmetic",
    [PL_TERM_NETWORK] = "the network",
};

const char *pl_term_name(pl_term term)
{
    RT_ASSERT((unsigned)term < PL_TERM_COUNT);
    return term_names[term];
}

/* ---- curves ---- */

pl_curve pl_curve_flat(void)
{
    return (pl_curve){.count = 2, .fraction = {0, 1}, .share = {0, 1}};
}

pl_curve pl_curve_glm52(void)
{
    return (pl_curve){
        .count = 13,
        .fraction = {0, 1. / 64, 1. / 32, 1. / 16, 1. / 8, 3. / 16, 1. / 4, 5. / 16, 3. / 8, 1. / 2,
                     5. / 8, 3. / 4, 1},
        .share = {0, .087, .146, .238, .377, .486, .576, .652, .718, .824, .901, .955, 1},
    };
}

rt_status pl_curve_check(const pl_curve *curve, rt_err *err)
{
    uint32_t last = curve->count - 1;

    if (curve->count < 2 || curve->count > PL_CURVE_POINTS_MAX)
        return rt_fail(err, RT_EINVAL, "heat curve: expected 2 to %d points, found %u",
                       PL_CURVE_POINTS_MAX, curve->count);
    for (uint32_t i = 0; i <= last; i++) {
        double from = i == 0 ? 0 : curve->fraction[i - 1];
        double least = i == 0 ? 0 : curve->share[i - 1];
        /* Not-a-number fails each of these. */
        bool rises = i == 0 || curve->fraction[i] > from;

        if (!(rises && curve->fraction[i] >= 0 && curve->fraction[i] <= 1 &&
              curve->share[i] >= least && curve->share[i] <= 1))
            return rt_fail(err, RT_EINVAL,
                           "heat curve: point %u: expected to rise within 0..1, found %g of the "
                           "uses on %g of the experts",
                           i, curve->share[i], curve->fraction[i]);
    }
    if (curve->fraction[0] > 0 || curve->share[0] > 0 || curve->fraction[last] < 1 ||
        curve->share[last] < 1)
        return rt_fail(err, RT_EINVAL,
                       "heat curve: expected (0, 0) to (1, 1), found (%g, %g) to "
                       "(%g, %g)",
                       curve->fraction[0], curve->share[0], curve->fraction[last],
                       curve->share[last]);
    return RT_OK;
}

double pl_curve_at(const pl_curve *curve, double fraction)
{
    uint32_t i = 1;
    double from, width;

    if (!(fraction > 0)) return 0;
    if (fraction >= 1) return 1;
    while (i + 1 < curve->count && curve->fraction[i] < fraction)
        i++;
    from = curve->fraction[i - 1];
    width = curve->fraction[i] - from;
    return curve->share[i - 1] +
           (curve->share[i] - curve->share[i - 1]) * ((fraction - from) / width);
}

/* ---- the busiest node ---- */

/* a *= b, both polynomials up to x^degree. */
static void multiply(double *a, const double *b, uint32_t degree)
{
    double product[PL_PLAN_TOPK_MAX + 1] = {0};

    for (uint32_t i = 0; i <= degree; i++)
        for (uint32_t j = 0; i + j <= degree; j++)
            product[i + j] += a[i] * b[j];
    memcpy(a, product, (degree + 1) * sizeof(*a));
}

/* The probability that none of `nodes` gets more than `most` of topk experts thrown at random:
 * topk! [x^topk] (sum over i <= most of (x / nodes)^i / i!)^nodes. */
static double none_above(uint32_t topk, uint32_t nodes, uint32_t most)
{
    double base[PL_PLAN_TOPK_MAX + 1] = {1}, power[PL_PLAN_TOPK_MAX + 1] = {1};
    double factorial = 1;

    for (uint32_t i = 1; i <= topk; i++) {
        base[i] = i <= most ? base[i - 1] / nodes / i : 0;
        factorial *= i;
    }
    for (uint32_t n = nodes; n > 0; n >>= 1) {
        if (n & 1) multiply(power, base, topk);
        multiply(base, base, topk);
    }
    return power[topk] * factorial;
}

double pl_plan_busiest(uint32_t topk, uint32_t nodes)
{
    double expected = 0;

    RT_ASSERT(topk > 0 && topk <= PL_PLAN_TOPK_MAX && nodes > 0 && nodes <= PL_PLAN_NODES_MAX);
    /* E[max] = sum over m >= 0 of P(max > m). */
    for (uint32_t most = 0; most < topk; most++)
        expected += 1 - (most == 0 ? 0 : none_above(topk, nodes, most));
    return expected;
}

/* ---- bytes ---- */

static rt_status check_rate(const char *name, double rate, bool zero_allowed, rt_err *err)
{
    if (isfinite(rate) && (rate > 0 || (zero_allowed && !(rate < 0)))) return RT_OK;
    return rt_fail(err, RT_EINVAL, "plan: %s: expected a rate above 0, found %g", name, rate);
}

static rt_status check_input(const pl_model *model, const pl_machine *machine, rt_err *err)
{
    if (model->layers == 0 || model->experts == 0 || model->record_bytes == 0)
        return rt_fail(err, RT_EINVAL,
                       "plan: expected experts, found %u layers of %u experts of %llu bytes",
                       model->layers, model->experts, (unsigned long long)model->record_bytes);
    if (model->topk == 0 || model->topk > PL_PLAN_TOPK_MAX || model->topk > model->experts)
        return rt_fail(err, RT_EINVAL, "plan: top-k: expected 1 to %d of %u experts, found %u",
                       PL_PLAN_TOPK_MAX, model->experts, model->topk);
    if (machine->nodes == 0 || machine->nodes > PL_PLAN_NODES_MAX)
        return rt_fail(err, RT_EINVAL, "plan: nodes: expected 1 to %d, found %u", PL_PLAN_NODES_MAX,
                       machine->nodes);
    RT_TRY(check_rate("memory read rate", machine->ram_rate, false, err));
    RT_TRY(check_rate("disk rate", machine->disk_rate, true, err));
    RT_TRY(check_rate("attention rate", machine->flop_rate, false, err));
    if (machine->nodes > 1) {
        RT_TRY(check_rate("link rate", machine->link_rate, false, err));
        if (!(machine->link_latency_s >= 0) || !isfinite(machine->link_latency_s))
            return rt_fail(err, RT_EINVAL, "plan: link latency: expected 0 or more, found %g",
                           machine->link_latency_s);
    }
    return RT_OK;
}

static uint32_t holders(const pl_machine *machine)
{
    return machine->nodes == 1 ? 1 : machine->nodes - 1;
}

static uint64_t head_bytes(const pl_model *model)
{
    return model->dense_bytes + model->kv_bytes + model->attention_scratch_bytes;
}

/* What a holder of experts has in RAM beside them. */
static uint64_t beside_experts(const pl_model *model, const pl_machine *machine)
{
    return model->expert_scratch_bytes + (machine->nodes == 1 ? head_bytes(model) : 0);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint32_t pl_transit_slots(uint64_t budget_bytes, uint64_t reserved_bytes, uint64_t record_bytes,
                          uint32_t wanted)
{
    uint64_t count = budget_bytes / TRANSIT_DIVISOR / record_bytes;

    RT_ASSERT(record_bytes > 0);
    if (count > wanted) count = wanted;
    /* An eighth and the read buffers may be more than a tiny budget has. */
    if (count < PL_TRANSIT_LEAST || count * record_bytes + reserved_bytes > budget_bytes)
        count = PL_TRANSIT_LEAST;
    return (uint32_t)count;
}

double pl_pinned_share(double heat_confidence)
{
    return 0.5 * heat_confidence;
}

/* What a holder of experts does with the RAM that it has for them. */
static void divide(const pl_model *model, const pl_machine *machine, uint64_t budget, pl_plan *out)
{
    uint64_t slots = budget / model->record_bytes, layer_slots;

    if (slots >= out->records_node) {
        out->records_in_ram = out->records;
        out->records_pinned = out->records;
        return;
    }
    out->transit_slots =
        pl_transit_slots(budget, 0, model->record_bytes, PL_TRANSIT_PER_CHOICE * model->topk);
    slots -= out->transit_slots;
    layer_slots = slots / model->layers;
    out->records_in_ram = slots * holders(machine);
    out->records_pinned =
        (uint64_t)(pl_pinned_share(model->heat_confidence) * (double)layer_slots) * model->layers *
        holders(machine);
}

static void place(const pl_model *model, const pl_machine *machine, pl_plan *out)
{
    uint64_t beside = beside_experts(model, machine), head = head_bytes(model);
    uint64_t least = PL_TRANSIT_LEAST;

    out->records = (uint64_t)model->layers * model->experts;
    out->records_node = (out->records + holders(machine) - 1) / holders(machine);
    if (least > out->records_node || machine->disk_rate <= 0) least = out->records_node;
    out->needed_bytes = larger(head, beside + least * model->record_bytes);
    out->all_bytes = larger(head, beside + out->records_node * model->record_bytes);
    out->fits = out->needed_bytes <= machine->ram_bytes;
    if (!out->fits) {
        out->missing_bytes = out->needed_bytes - machine->ram_bytes;
        return;
    }
    divide(model, machine, machine->ram_bytes - beside, out);
    out->ram_used_bytes =
        larger(head, beside + (out->transit_slots == 0
                                   ? out->records_node
                                   : out->records_in_ram / holders(machine) + out->transit_slots) *
                                  model->record_bytes);
}

static uint32_t nodes_for_all(const pl_model *model, uint64_t ram_bytes)
{
    uint64_t head = head_bytes(model), records = (uint64_t)model->layers * model->experts;
    uint64_t slots, nodes;

    if (head + model->expert_scratch_bytes + records * model->record_bytes <= ram_bytes) return 1;
    if (head > ram_bytes || model->expert_scratch_bytes >= ram_bytes) return 0;
    slots = (ram_bytes - model->expert_scratch_bytes) / model->record_bytes;
    if (slots == 0) return 0;
    nodes = 1 + (records + slots - 1) / slots;
    return nodes <= PL_PLAN_NODES_MAX ? (uint32_t)nodes : 0;
}

/* ---- seconds ---- */

/* Experts of a token that the busiest holder computes, in whole ones. */
static double busiest_share(const pl_model *model, const pl_machine *machine)
{
    return machine->sliced ? (double)model->topk / holders(machine)
                           : pl_plan_busiest(model->topk, holders(machine));
}

/* Nodes that a token's row goes to in a layer. */
static double nodes_asked(const pl_model *model, const pl_machine *machine)
{
    double n = holders(machine), spared = 1;

    for (uint32_t i = 0; i < model->topk; i++)
        spared *= 1 - 1 / n;
    return machine->sliced ? n : n * (1 - spared);
}

static void time_terms(const pl_model *model, const pl_machine *machine, pl_plan *out)
{
    double layers = model->layers, missed = 1 - out->hit_rate;
    double expert_bytes = layers * busiest_share(model, machine) * (double)model->record_bytes;
    double *bytes = out->token_bytes, *term = out->term_s;

    bytes[PL_TERM_DENSE] = (double)model->dense_token_bytes;
    bytes[PL_TERM_EXPERTS] = expert_bytes;
    bytes[PL_TERM_DISK] = expert_bytes * missed;
    bytes[PL_TERM_ATTENTION] = model->attention_flop;
    bytes[PL_TERM_NETWORK] = 0;
    term[PL_TERM_DENSE] = bytes[PL_TERM_DENSE] / machine->ram_rate;
    term[PL_TERM_EXPERTS] = expert_bytes / machine->ram_rate;
    term[PL_TERM_DISK] = missed > 0 ? bytes[PL_TERM_DISK] / machine->disk_rate : 0;
    term[PL_TERM_ATTENTION] = model->attention_flop / machine->flop_rate;
    term[PL_TERM_NETWORK] = 0;
    if (machine->nodes == 1) return;
    bytes[PL_TERM_NETWORK] = layers * nodes_asked(model, machine) *
                             ((double)model->row_out_bytes + model->row_back_bytes);
    term[PL_TERM_NETWORK] =
        layers * machine->link_latency_s + bytes[PL_TERM_NETWORK] / machine->link_rate;
}

static void add_up(pl_plan *out)
{
    double work = 0, disk = out->term_s[PL_TERM_DISK];

    out->limit = PL_TERM_DENSE;
    for (int t = 0; t < PL_TERM_COUNT; t++) {
        if (t != PL_TERM_DISK) work += out->term_s[t];
        if (out->term_s[t] > out->term_s[out->limit]) out->limit = (pl_term)t;
    }
    out->slow_tok_s = PL_SLOW / (work + disk);
    out->fast_tok_s = 1 / (work > disk ? work : disk);
}

rt_status pl_plan_make(const pl_model *model, const pl_machine *machine, const pl_curve *curve,
                       pl_plan *out, rt_err *err)
{
    pl_plan plan = {0};

    RT_TRY(check_input(model, machine, err));
    RT_TRY(pl_curve_check(curve, err));
    place(model, machine, &plan);
    plan.nodes_for_all = nodes_for_all(model, machine->ram_bytes);
    if (plan.fits) {
        plan.hit_rate =
            plan.records_in_ram == plan.records
                ? 1
                : pl_curve_at(curve, (double)plan.records_in_ram / (double)plan.records);
        time_terms(model, machine, &plan);
        add_up(&plan);
    }
    *out = plan;
    return RT_OK;
}
