/* A whole run of the caching allocator, in C: python.py.
 *
 * blocks.h, expandable.h and allocator.h follow the Python files of those names function by function. Read those first, they say
 * why; a property test holds the two equal. Blocks are numbers into one array, so that nothing points at memory that has moved.
 *
 * The one entry is memfit_run. It trusts its input: the caller has checked that every number in the requests is in range.
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
        if (engine->out->block_bytes != NULL) {
            engine->out->block_bytes[block] = engine->blocks[held[block]].size;
        }
        break;
    case FREE_NOW:
        free_block(engine, held[block]);
        engine->out->completed[block] = i;
        break;
    case FREE_REQUESTED:
        request_free(engine, held[block], block);
        break;
    case FREE_COMPLETED:
        if (engine->out->completed[block] == requests->num_requests) {
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
            if (i == requests->num_requests) {
                out->num_done = i;
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

static void open_lists(Engine *engine, const Requests *requests) {
    engine->lists = resized(engine, NULL, requests->num_free_lists + 1, sizeof *engine->lists);
    engine->num_lists = requests->num_free_lists;
    for (int64_t i = 0; i < engine->num_lists; i++) {
        int64_t small = requests->free_list_small[i], pool = requests->free_list_pool[i];
        engine->lists[i] = (FreeList){.small = small, .pool = pool, .released = pool == 0};
        engine->lists[i].least_rest = small || engine->rules->expandable ? 512 : (1 << 20) + 512;
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

void memfit_release(Outcome *out) { free(out->segment_log); }

/* What this was compiled from, so that a library left over from another version is never used. */
const char *memfit_source(void) { return MEMFIT_SOURCE; }
