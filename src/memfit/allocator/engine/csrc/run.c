/* A whole run of the caching allocator, in C: python.py.
 *
 * blocks.h, expandable.h and allocator.h follow the Python files of those names function by function. Read those first, they say
 * why; a property test holds the two equal. Blocks are numbers into one array, so that nothing points at memory that has moved.
 *
 * The entries are memfit_run, and memfit_open and those after it for a run that goes on. They trust their input: the caller has checked that every number in the requests is in range.
 */

#include "blocks.h"

#include "expandable.h"

#include "allocator.h"

#include "repeating.h"

enum { ALLOC, FREE_NOW, FREE_REQUESTED, FREE_COMPLETED, EMPTY_CACHE, RELEASE_POOL };

typedef struct {
    int64_t num_requests, num_blocks, num_free_lists, top_address;
    const uint8_t *kind;
    const int64_t *block, *size, *segment, *address, *free_list;
    const int64_t *free_list_small, *free_list_pool;
    const Stretch *stretches; /* of a trial: in their order, apart from each other */
    int64_t num_stretches;
} Requests;

static int serve(Engine *engine, const Requests *requests, int64_t i) {
    int32_t *held = engine->held;
    int64_t block = requests->block[i], list = requests->free_list[i];
    switch (requests->kind[i]) {
    case ALLOC:
        held[block] = allocate(engine, (int32_t)list, requests->size[i], requests->segment[i], requests->address[i]);
        if (held[block] == NONE) {
            return 0;
        }
        engine->blocks[held[block]].owner = block;
        engine->allocated += engine->blocks[held[block]].size;
        if (engine->out->block_bytes != NULL) {
            engine->out->block_bytes[block] = engine->blocks[held[block]].size;
        }
        break;
    case FREE_NOW:
        engine->allocated -= engine->blocks[held[block]].size;
        free_block(engine, held[block]);
        if (engine->out->completed != NULL) {
            engine->out->completed[block] = i;
        }
        break;
    case FREE_REQUESTED:
        engine->allocated -= engine->blocks[held[block]].size;
        request_free(engine, held[block]);
        break;
    case FREE_COMPLETED:
        if (held[block] != NONE) {
            complete_free(engine, held[block]);
        }
        break;
    case EMPTY_CACHE:
        empty_cache(engine);
        break;
    case RELEASE_POOL:
        release_pool(engine, list);
        break;
    }
    return 1;
}

static void serve_all(Engine *engine, const Requests *requests) {
    Outcome *out = engine->out;
    expect_stretch(engine, requests->stretches, requests->num_stretches);
    for (int64_t i = 0; i < requests->num_requests; i++) {
        if (i == engine->boundary) {
            i += pass_boundary(engine, requests->stretches, requests->num_stretches);
            out->num_done = i;
            if (i == requests->num_requests) {
                break;
            }
        }
        engine->request = i;
        if (!serve(engine, requests, i)) {
            break;
        }
        if (out->num_inactive != NULL) {
            out->num_inactive[2 * i] = engine->num_inactive[0];
            out->num_inactive[2 * i + 1] = engine->num_inactive[1];
        }
        out->num_done = i + 1;
    }
}

static void open_list(Engine *engine, int64_t number, int64_t small, int64_t pool) {
    engine->lists[number] = (FreeList){.small = small, .pool = pool, .released = pool == 0};
    engine->lists[number].least_rest = small || engine->rules->expandable ? 512 : (1 << 20) + 512;
}

static void open_lists(Engine *engine, const Requests *requests) {
    engine->lists = resized(engine, NULL, requests->num_free_lists + 1, sizeof *engine->lists);
    engine->num_lists = requests->num_free_lists;
    for (int64_t i = 0; i < engine->num_lists; i++) {
        open_list(engine, i, requests->free_list_small[i], requests->free_list_pool[i]);
    }
}

static void close_engine(Engine *engine) {
    for (int64_t i = 0; i < engine->num_lists; i++) {
        free(engine->lists[i].free.items);
        free(engine->lists[i].unmapped.items);
    }
    free(engine->lists);
    free(engine->held);
    free(engine->pending.items);
    free(engine->spare.items);
    free(engine->scratch.items);
    free(engine->states[0].numbers);
    free(engine->states[1].numbers);
    free(engine->ranked);
    free(engine->ranks);
    free(engine->blocks);
}

/* In a function of its own: what is local to the one that calls setjmp may be lost in the jump. */
static int serve_guarded(Engine *engine, const Requests *requests) {
    if (setjmp(engine->out_of_host_memory)) {
        return 1;
    }
    open_lists(engine, requests);
    engine->held = resized(engine, NULL, requests->num_blocks + 1, sizeof *engine->held);
    serve_all(engine, requests);
    return 0;
}

/* Serves the requests until they are over or memory has run out; 0, or 1 when this machine itself has no memory left. */
int memfit_run(const Rules *rules, const Requests *requests, Outcome *out) {
    Engine engine = {.rules = rules, .out = out, .lowest_address = requests->top_address};
    out->least_refused = NO_LIMIT;
    int failed = serve_guarded(&engine, requests);
    close_engine(&engine);
    return failed;
}

/* -- a run that goes on */

typedef struct {
    Engine engine;
    Rules rules;
    Outcome out;
} OpenRun;

/* A run of which the requests come one after the other; NULL when this machine has no memory left. */
OpenRun *memfit_open(const Rules *rules, int64_t top_address) {
    OpenRun *run = malloc(sizeof *run);
    if (run != NULL) {
        *run = (OpenRun){.rules = *rules, .out = {.least_refused = NO_LIMIT}};
        run->engine = (Engine){.rules = &run->rules, .out = &run->out, .lowest_address = top_address};
    }
    return run;
}

/* The number of a new free list of the default pool; NONE when this machine has no memory left. */
int64_t memfit_add_list(OpenRun *run, int64_t small) {
    Engine *engine = &run->engine;
    if (setjmp(engine->out_of_host_memory)) {
        return NONE;
    }
    engine->lists = resized(engine, engine->lists, engine->num_lists + 1, sizeof *engine->lists);
    open_list(engine, engine->num_lists, small, 0);
    return engine->num_lists++;
}

/* Serves the next requests, until they are over or memory has run out: how many were served; NONE when this machine has no memory
 * left. After a refusal the run may go on. */
int64_t memfit_go_on(OpenRun *run, const Requests *requests) {
    Engine *engine = &run->engine;
    if (setjmp(engine->out_of_host_memory)) {
        return NONE;
    }
    if (engine->held_room < requests->num_blocks) {
        engine->held = resized(engine, engine->held, 2 * requests->num_blocks, sizeof *engine->held);
        engine->held_room = 2 * requests->num_blocks;
    }
    run->out.num_done = 0;
    serve_all(engine, requests);
    return run->out.num_done;
}

int64_t memfit_allocated(const OpenRun *run) { return run->engine.allocated; }

int64_t memfit_reserved(const OpenRun *run) { return run->engine.reserved; }

void memfit_close(OpenRun *run) {
    close_engine(&run->engine);
    free(run);
}

void memfit_release(Outcome *out) { free(out->segment_log); }

/* What this was compiled from, so that a library left over from another version is never used. */
const char *memfit_source(void) { return MEMFIT_SOURCE; }
