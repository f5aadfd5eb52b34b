/* Sampling: `sample` of sampling.py, in one call per pass. */

#include <math.h>

#include "vectors.h"

#define CHUNK 64 /* tokens per partial sum; only one chunk is searched token by token */

typedef struct {
    const float *logits; /* [rows, vocabulary], `stride` apart */
    int64_t stride, vocabulary;
    const int64_t *rows; /* row of each draw */
    const uint64_t *addresses, *counters;
    const float *temperatures; /* 0: the most likely token */
    int64_t *tokens;
    float *logprobs;
} Draws;

/* SplitMix64: 23 bits plus 1/2, as a number in (0, 1). */
static double uniform(uint64_t address, uint64_t counter) {
    uint64_t state = address + (counter + 1) * 0x9E3779B97F4A7C15u;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    state ^= state >> 31;
    return ((double)((state >> 41) & ((1 << 23) - 1)) + 0.5) / (1 << 23);
}

static float highest(const float *logits, int64_t count) {
    int64_t token = 0;
    vec tops = all(logits[0]);
    for (; token + LANES <= count; token += LANES)
        tops = larger(tops, load(logits + token));
    float top = largest(tops);
    for (; token < count; token++)
        top = logits[token] > top ? logits[token] : top;
    return top;
}

/* weights[token] = e^((logit - top) / temperature); the sum of each chunk; returns the sum of all. */
static double weigh(const float *logits, int64_t count, float top, float temperature, float *weights, double *sums) {
    memcpy(weights, logits, count * sizeof(float));
    memset(weights + count, 0, LANES * sizeof(float));
    float inverse = 1 / temperature;
    double sum = 0;
    for (int64_t start = 0; start < count; start += CHUNK) {
        int64_t end = start + CHUNK < count ? start + CHUNK : count;
        vec here = {0};
        for (int64_t token = start; token < end; token += LANES) {
            vec weight = exponential((load(weights + token) - top) * inverse);
            weight = choose(NUMBERS < (int32_t)(end - token), weight, (vec){0});
            store(weights + token, weight);
            here += weight;
        }
        sum += sums[start / CHUNK] = total(here);
    }
    return sum;
}

/* The token at which the running sum passes the threshold. */
static int64_t find(const float *weights, const double *sums, int64_t count, double threshold) {
    double passed = 0;
    int64_t start = 0, token, last;
    for (; start + CHUNK < count && passed + sums[start / CHUNK] <= threshold; start += CHUNK)
        passed += sums[start / CHUNK];
    for (token = last = start; token < count && token < start + CHUNK; token++) {
        passed += weights[token];
        if (passed > threshold)
            return token;
        if (weights[token] > weights[last])
            last = token;
    }
    return last; /* rounding: the total was summed in another order; take the most likely token of the chunk */
}

static int64_t first_with(const float *logits, int64_t count, float logit) {
    int64_t token = 0;
    while (token < count - 1 && logits[token] != logit)
        token++;
    return token;
}

static void draw_one(const Draws *draws, int64_t number, float *weights, double *sums) {
    const float *logits = draws->logits + draws->rows[number] * draws->stride;
    int64_t count = draws->vocabulary, token;
    int greedy = draws->temperatures[number] == 0;
    float temperature = greedy ? 1 : draws->temperatures[number], top = highest(logits, count);
    double sum = weigh(logits, count, top, temperature, weights, sums);
    if (greedy)
        token = first_with(logits, count, top);
    else
        token = find(weights, sums, count, uniform(draws->addresses[number], draws->counters[number]) * sum);
    draws->tokens[number] = token;
    draws->logprobs[number] = (logits[token] - top) / temperature - log(sum);
}

/* Returns 0, or 1 if out of memory. */
int draw(const Draws *draws, int64_t count) {
    int failed = 0;
#pragma omp parallel if (count > 8)
    {
        int64_t chunks = draws->vocabulary / CHUNK + 1;
        double *sums = malloc(chunks * sizeof(double) + (chunks * CHUNK + LANES) * sizeof(float));
        if (sums == NULL) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 8)
        for (int64_t number = 0; number < count; number++)
            if (sums != NULL)
                draw_one(draws, number, (float *)(sums + chunks), sums);
        free(sums);
    }
    return failed;
}
