/* Serves runs from a file with the engine's own source, for a build under sanitizers.
 *
 *     driver CASES OUTCOMES [fail]
 *
 * CASES holds, per run, all as int64: the rules, the counts, then each column, and the stretches that repeat. OUTCOMES gets, per run: whether the machine ran out of
 * memory, the counters, block_bytes, completed, num_inactive of the requests that were served, and the log. Every array here is
 * exactly as large as the engine was told, so that a sanitizer sees the first step beyond it. With "fail", every run is served again
 * and again, with the first, second, third, ... growth of an array refused.
 */

#include <stdio.h>
#include <stdlib.h>

static long growths_left = -1;

static void *refusing_realloc(void *array, size_t size) {
    if (growths_left == 0) {
        return NULL;
    }
    growths_left -= growths_left > 0;
    return realloc(array, size);
}

#define MEMFIT_SOURCE "driver"
#define realloc refusing_realloc
#include "run.c"
#undef realloc

static int64_t *numbers(FILE *file, int64_t count) {
    int64_t *found = malloc((size_t)count * sizeof *found + (count == 0));
    if (found == NULL || fread(found, sizeof *found, (size_t)count, file) != (size_t)count) {
        fprintf(stderr, "the file of cases is cut short\n");
        exit(3);
    }
    return found;
}

static int64_t *filled(int64_t count, int64_t value) {
    int64_t *made = malloc((size_t)count * sizeof *made + (count == 0));
    for (int64_t i = 0; i < count; i++) {
        made[i] = value;
    }
    return made;
}

/* The same as a trial, which must end as the whole run did. */
static int try_once(const Rules *rules, const Requests *requests, const Outcome *whole, int failed) {
    Outcome trial = {0};
    int out_of_memory = memfit_run(rules, requests, &trial);
    int is_same = trial.num_done == whole->num_done && trial.most_granted == whole->most_granted &&
                  trial.least_refused == whole->least_refused && trial.segment_log == NULL;
    if (!failed && !out_of_memory && !is_same) {
        fprintf(stderr, "a trial ends otherwise than the run\n");
        exit(4);
    }
    return out_of_memory;
}

/* The same as a run that goes on, served in two halves. Private pools are not for such runs. */
static int go_on(const Rules *rules, const Requests *requests, const Outcome *whole, int failed) {
    for (int64_t i = 0; i < requests->num_free_lists; i++) {
        if (requests->free_list_pool[i] != 0) {
            return 0;
        }
    }
    OpenRun *run = memfit_open(rules, requests->top_address);
    int out_of_memory = run == NULL;
    for (int64_t i = 0; i < requests->num_free_lists && !out_of_memory; i++) {
        out_of_memory = memfit_add_list(run, requests->free_list_small[i]) == NONE;
    }
    int64_t half = requests->num_requests / 2, served = 0;
    Requests first = *requests, second = *requests;
    first.num_requests = half;
    first.num_stretches = second.num_stretches = 0;
    second.num_requests -= half;
    second.kind += half;
    second.block += half;
    second.size += half;
    second.segment += half;
    second.address += half;
    second.free_list += half;
    const Requests *halves[] = {&first, &second};
    for (int i = 0; i < 2 && !out_of_memory && served == i * half; i++) {
        int64_t now = memfit_go_on(run, halves[i]);
        out_of_memory = now == NONE;
        served += now;
    }
    if (!failed && !out_of_memory && served != whole->num_done) {
        fprintf(stderr, "a run that goes on ends otherwise than the run: %lld, not %lld\n", (long long)served, (long long)whole->num_done);
        exit(5);
    }
    if (run != NULL) {
        memfit_close(run);
    }
    return out_of_memory;
}

static int serve_once(const Rules *rules, const Requests *requests, FILE *out) {
    Outcome outcome = {
        .block_bytes = filled(requests->num_blocks, 0),
        .completed = filled(requests->num_blocks, requests->num_requests),
        .num_inactive = filled(2 * requests->num_requests, 0),
    };
    Requests all = *requests;
    all.num_stretches = 0;
    int failed = memfit_run(rules, &all, &outcome);
    if (out != NULL) {
        int64_t head[] = {failed, outcome.num_done, outcome.num_alloc_retries, outcome.num_sync_all_streams, outcome.num_oom_rejections,
                          outcome.most_granted, outcome.least_refused, outcome.num_log_rows};
        fwrite(head, sizeof *head, 8, out);
        fwrite(outcome.block_bytes, sizeof(int64_t), (size_t)requests->num_blocks, out);
        fwrite(outcome.completed, sizeof(int64_t), (size_t)requests->num_blocks, out);
        fwrite(outcome.num_inactive, sizeof(int64_t), 2 * (size_t)outcome.num_done, out);
        if (outcome.num_log_rows > 0) {
            fwrite(outcome.segment_log, sizeof(LogRow), (size_t)outcome.num_log_rows, out);
        }
    }
    failed |= try_once(rules, requests, &outcome, failed);
    failed |= go_on(rules, requests, &outcome, failed);
    memfit_release(&outcome);
    free(outcome.block_bytes);
    free(outcome.completed);
    free(outcome.num_inactive);
    return failed;
}

static void serve_case(FILE *in, FILE *out, int refuse) {
    int64_t *rules = numbers(in, sizeof(Rules) / sizeof(int64_t)), *counts = numbers(in, 5), *columns[9];
    int64_t num_requests = counts[0], num_lists = counts[2];
    for (int i = 0; i < 9; i++) {
        columns[i] = numbers(in, i < 6 ? num_requests : i < 8 ? num_lists : counts[4] * (int64_t)(sizeof(Stretch) / sizeof(int64_t)));
    }
    uint8_t *kind = malloc((size_t)num_requests + (num_requests == 0));
    for (int64_t i = 0; i < num_requests; i++) {
        kind[i] = (uint8_t)columns[0][i];
    }
    Requests requests = {num_requests,  counts[1],  num_lists,  counts[3],  kind,       columns[1],
                         columns[2],    columns[3], columns[4], columns[5], columns[6], columns[7],
                         (const Stretch *)columns[8], counts[4]};
    serve_once((const Rules *)rules, &requests, out);
    for (long refused = 0, failed = refuse; failed; refused++) {
        growths_left = refused;
        failed = serve_once((const Rules *)rules, &requests, NULL);
        growths_left = -1;
    }
    for (int i = 0; i < 9; i++) {
        free(columns[i]);
    }
    free(kind);
    free(rules);
    free(counts);
}

int main(int argc, char **argv) {
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (in == NULL || out == NULL) {
        return 3;
    }
    for (int next = fgetc(in); next != EOF; next = fgetc(in)) {
        ungetc(next, in);
        serve_case(in, out, argc > 3);
        fflush(out);
    }
    fclose(in);
    fclose(out);
    return 0;
}
