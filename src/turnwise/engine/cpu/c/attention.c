/* Attention of new tokens over a cache of slots: `torch_attention` of attention.py, in one call per layer.

   keys    [slots, KV, D, capacity]     positions are adjacent, so that scores are computed for several at once
   values  [slots, KV, capacity, D]
   query   [N, H, D], key and value [N, KV, D], with stride 1 in D and any other strides; out [N, H, D] is contiguous

   A row is one session's new tokens: they are written to its slot, and each then attends to positions up to its own,
   and to as many later ones of its row as `ahead` says.
   D and the capacity are multiples of 16. Every row and head is computed independently, so the result of a session
   does not depend on the other sessions of the pass. */

#include "vectors.h"

#define BLOCK 4       /* maximum of queries that share a loaded key; a constant in the loops over it */
#define PARTS (16 / LANES) /* vectors that hold 16 numbers of a value */
#define LOWEST -1e30f /* score of masked positions */

typedef struct {
    int64_t slot, past, new, skip, token;
    /* `skip`: the first new tokens, whose output is not used. `token`: index of the first new token in the pass. */
} Row;

typedef struct {
    int64_t heads, kv, size, capacity;
    int64_t first, shared; /* positions below `shared` are equal in all slots of the call, and read from slot `first` */
    int64_t window;        /* size of the sliding window, the token included; 0: no window */
    float scale;
    const float *query, *key, *value;
    int64_t query_token, query_head, key_token, key_head, value_token, value_head; /* strides */
    float *keys, *values, *out;
    const int64_t *ahead; /* [N], or NULL if no token attends to later ones */
} Call;

/* The position after the last one that a row's token number t attends to. */
static inline int64_t end_of(const Call *call, const Row *row, int64_t t) {
    return row->past + t + 1 + (call->ahead ? call->ahead[row->token + t] : 0);
}

/* scores[i][j] = query i . key j for `depth` vectors of positions from j on. Queries are `size` apart. */
INLINE void score_tile(const float *keys, int64_t capacity, int64_t size, const float *queries, int64_t j,
                       float *scores, int64_t span, int block, int depth) {
    vec sums[SUMS] = {{0}};
    for (int64_t d = 0; d < size; d++)
        for (int k = 0; k < depth; k++) {
            vec column = load(keys + d * capacity + j + k * LANES);
            for (int i = 0; i < block; i++)
                sums[i * depth + k] += queries[i * size + d] * column;
        }
    for (int i = 0; i < block; i++)
        for (int k = 0; k < depth; k++)
            store(scores + i * span + j + k * LANES, sums[i * depth + k]);
}

/* For positions from..to, in whole vectors. SUMS accumulators at a time hide latency. */
INLINE void score(const float *keys, int64_t capacity, int64_t size, const float *queries, int64_t from, int64_t to,
                  float *scores, int64_t span, int block) {
    const int depth = SUMS / block;
    int64_t j = from;
    for (; j + depth * LANES <= to; j += depth * LANES)
        score_tile(keys, capacity, size, queries, j, scores, span, block, depth);
    for (; j < to; j += LANES)
        score_tile(keys, capacity, size, queries, j, scores, span, block, 1);
}

/* Adds 16 numbers of one value to the sums of each query, times the query's weight. */
INLINE void gather_one(const float *value, const float *weights, int64_t span, vec *sums, int depth, int block) {
    vec parts[PARTS];
    for (int part = 0; part < PARTS; part++)
        parts[part] = load(value + part * LANES);
    for (int i = 0; i < block; i++)
        for (int part = 0; part < PARTS; part++)
            sums[i * depth * PARTS + part] += weights[i * span] * parts[part];
}

/* The sum of weights[i][j] * value j over positions from..to, added to out[i]. */
INLINE void gather(const float *values, int64_t size, const float *weights, int64_t span, int64_t from, int64_t to,
                   float *out, int block) {
    const int depth = SUMS > block * PARTS ? SUMS / (block * PARTS) : 1;
    for (int64_t d = 0; d < size; d += PARTS * LANES) {
        vec sums[BLOCK * PARTS > SUMS ? BLOCK * PARTS : SUMS] = {{0}}; /* [block, depth, PARTS] */
        int64_t j = from;
        for (; j + depth <= to; j += depth)
            for (int k = 0; k < depth; k++)
                gather_one(values + (j + k) * size + d, weights + j + k, span, sums + k * PARTS, depth, block);
        for (; j < to; j++)
            gather_one(values + j * size + d, weights + j, span, sums, depth, block);
        for (int i = 0; i < block; i++)
            for (int part = 0; part < PARTS; part++) {
                vec sum = load(out + i * size + d + part * LANES);
                for (int k = 0; k < depth; k++)
                    sum += sums[(i * depth + k) * PARTS + part];
                store(out + i * size + d + part * LANES, sum);
            }
    }
}

/* Scores of positions begin..end become weights, not yet divided by their sum, which is returned; others become 0.
   `from` and `to` are the whole vectors around them. */
static float soften(float *scores, int64_t from, int64_t begin, int64_t end, int64_t to) {
    vec highest = all(LOWEST), sums = {0};
    for (int64_t j = from; j < to; j += LANES) {
        ints place = NUMBERS + (int32_t)j;
        vec here = choose((place >= (int32_t)begin) & (place < (int32_t)end), load(scores + j), all(LOWEST));
        store(scores + j, here);
        highest = larger(here, highest);
    }
    float top = largest(highest);
    for (int64_t j = from; j < to; j += LANES) {
        vec here = exponential(load(scores + j) - top);
        store(scores + j, here);
        sums += here;
    }
    return total(sums);
}

static void write_new(const Call *call, const Row *row, int64_t head, float *keys, float *values) {
    for (int64_t t = 0; t < row->new; t++) {
        const float *key = call->key + (row->token + t) * call->key_token + head * call->key_head;
        const float *value = call->value + (row->token + t) * call->value_token + head * call->value_head;
        for (int64_t d = 0; d < call->size; d++)
            keys[d * call->capacity + row->past + t] = key[d];
        memcpy(values + (row->past + t) * call->size, value, call->size * sizeof(float));
    }
}

/* Up to `block` queries of one row that read the same keys: number q is token q / group, head q % group of its group.
   `scratch` holds BLOCK queries, BLOCK outputs and BLOCK rows of scores. */
INLINE void attend_block(const Call *call, const Row *row, int64_t head, int64_t start, int64_t stop, float *scratch,
                         int block) {
    int64_t size = call->size, group = call->heads / call->kv, span = call->capacity, count = stop - start;
    float *queries = scratch, *out = scratch + BLOCK * size, *scores = scratch + 2 * BLOCK * size;
    memset(scratch, 0, 2 * BLOCK * size * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        int64_t token = row->token + (start + i) / group, own = head * group + (start + i) % group;
        const float *query = call->query + token * call->query_token + own * call->query_head;
        for (int64_t d = 0; d < size; d++)
            queries[i * size + d] = query[d] * call->scale;
    }
    int64_t low = row->past + start / group, high = 0; /* the first query, and the end of what any query attends to */
    for (int64_t i = 0; i < count; i++) {
        int64_t end = end_of(call, row, (start + i) / group);
        high = end > high ? end : high;
    }
    int64_t from = call->window && low >= call->window ? (low - call->window + 1) / LANES * LANES : 0;
    int64_t to = (high + LANES - 1) / LANES * LANES, middle = call->shared > from ? call->shared : from;
    int64_t plane = size * call->capacity;
    const float *keys = call->keys + (row->slot * call->kv + head) * plane;
    const float *values = call->values + (row->slot * call->kv + head) * plane;
    const float *shared_keys = call->keys + (call->first * call->kv + head) * plane;
    const float *shared_values = call->values + (call->first * call->kv + head) * plane;
    score(shared_keys, call->capacity, size, queries, from, call->shared, scores, span, block);
    score(keys, call->capacity, size, queries, middle, to, scores, span, block);
    float sums[BLOCK];
    for (int64_t i = 0; i < block; i++) {
        int64_t t = (start + (i < count ? i : 0)) / group, own = row->past + t + 1;
        int64_t begin = call->window && own > call->window ? own - call->window : 0;
        sums[i] = soften(scores + i * span, from, begin > from ? begin : from, end_of(call, row, t), to);
    }
    gather(shared_values, size, scores, span, from, call->shared, out, block);
    gather(values, size, scores, span, middle, high, out, block);
    for (int64_t i = 0; i < count; i++) {
        int64_t token = row->token + (start + i) / group, own = head * group + (start + i) % group;
        for (int64_t d = 0; d < size; d++)
            call->out[(token * call->heads + own) * size + d] = out[i * size + d] / sums[i];
    }
}

static void attend_row(const Call *call, const Row *row, int64_t head, float *scratch) {
    int64_t group = call->heads / call->kv, plane = (row->slot * call->kv + head) * call->size * call->capacity;
    write_new(call, row, head, call->keys + plane, call->values + plane);
    for (int64_t t = 0; t < row->skip; t++)
        memset(call->out + ((row->token + t) * call->heads + head * group) * call->size, 0,
               group * call->size * sizeof(float));
    for (int64_t start = row->skip * group; start < row->new * group; start += BLOCK) {
        int64_t left = row->new * group - start;
        if (left == 1)
            attend_block(call, row, head, start, start + 1, scratch, 1);
        else if (left == 2)
            attend_block(call, row, head, start, start + 2, scratch, 2);
        else
            attend_block(call, row, head, start, start + (left < BLOCK ? left : BLOCK), scratch, BLOCK);
    }
}

/* Returns 0, or 1 if out of memory. */
int attend(const Call *call, const Row *rows, int64_t count) {
    int failed = 0;
#pragma omp parallel if (count > 1)
    {
        float *scratch = malloc(BLOCK * (2 * call->size + call->capacity) * sizeof(float));
        if (scratch == NULL) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t item = 0; item < count * call->kv; item++)
            if (scratch != NULL)
                attend_row(call, rows + item / call->kv, item % call->kv, scratch);
        free(scratch);
    }
    return failed;
}
