/* Blocks, their chains, and the lists in which free ones wait: blocks.py. */

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define NO_LIMIT (INT64_C(1) << 62)
#define LOWEST_ADDRESS (-NO_LIMIT)

enum { IN_USE, PENDING, FREE, UNMAPPED };
enum { BY_ADDRESS, BY_BIRTH, BY_SEGMENT };
enum { SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SEGMENT_IDLE, SEGMENT_BUSY };

typedef struct {
    int64_t capacity, limit, reject_at_limit, collect_above, max_split, non_split_slack;
    int64_t expandable, small_page, large_page, range_bytes, tie_break;
} Rules;

typedef struct {
    int64_t request, change, free_list, address, size;
} LogRow;

typedef struct {
    int64_t *block_bytes, *completed, *num_inactive; /* the caller's, as large as the requests say, or NULL */
    LogRow *segment_log;                             /* ours, until memfit_release; none without block_bytes */
    int64_t num_log_rows, num_done, num_alloc_retries, num_sync_all_streams, num_oom_rejections;
    int64_t most_granted, least_refused;
} Outcome;

typedef struct {
    int64_t address, size, birth, idle_since, owner;
    int64_t segment_number, segment_address;
    int32_t previous, following, home, pending_at;
    uint8_t state, expandable;
} Block;

typedef struct {
    int32_t *items;
    int64_t count, room;
} BlockList;

/* Requests that are the same again and again, but for the numbers of the blocks that they ask for. */
typedef struct {
    int64_t first, period, num_repeats, first_block, blocks_of_each;
} Stretch;

/* What decides all that follows, as numbers that are the same wherever the same will follow. */
typedef struct {
    int64_t *numbers;
    int64_t count, room;
} State;

typedef struct {
    int64_t key;
    int32_t number;
} Ranked;

typedef struct {
    BlockList free, unmapped;
    int64_t small, pool, least_rest;
    int released; /* idle segments of its pool may be given back */
} FreeList;

typedef struct {
    const Rules *rules;
    Block *blocks;
    FreeList *lists;
    BlockList spare;   /* blocks that were merged away or given back */
    BlockList pending; /* oldest first, NONE where one has completed */
    BlockList scratch;
    int64_t num_blocks, block_room, num_lists, num_pending, log_room;
    int64_t allocated, held_room; /* of a run that goes on */
    int64_t reserved, request, lowest_address, num_births, num_segments, num_lookups;
    int64_t num_inactive[2];
    int32_t *held; /* our numbers of the program's blocks */
    int64_t stretch, num_repeats, boundary; /* the next stretch, how many of its repeats are over, and the request after the next */
    int64_t repeats_when_kept;              /* after how many of them states[0] was */
    State states[2];                        /* the one that is kept, and the one that is compared with it */
    Ranked *ranked;                         /* room to sort blocks in */
    int32_t *ranks;
    int64_t rank_room;
    Outcome *out;
    jmp_buf out_of_host_memory;
} Engine;

/* -- arrays that grow */

static void *resized(Engine *engine, void *array, int64_t room, size_t item) {
    void *grown = (uint64_t)room > SIZE_MAX / 2 / item ? NULL : realloc(array, (size_t)room * item);
    if (grown == NULL) {
        longjmp(engine->out_of_host_memory, 1);
    }
    return grown;
}

/* Blocks are counted in 32 bits: a run with more blocks than that ends as if memory had run out. */
static int32_t counted(Engine *engine, int64_t number) {
    if (number >= INT32_MAX) {
        longjmp(engine->out_of_host_memory, 1);
    }
    return (int32_t)number;
}

static void insert(Engine *engine, BlockList *list, int64_t index, int32_t block) {
    if (list->count == list->room) {
        list->items = resized(engine, list->items, 2 * list->room + 16, sizeof *list->items);
        list->room = 2 * list->room + 16;
    }
    memmove(list->items + index + 1, list->items + index, (size_t)(list->count - index) * sizeof *list->items);
    list->items[index] = block;
    list->count++;
}

static void append(Engine *engine, BlockList *list, int32_t block) { insert(engine, list, list->count, block); }

static int32_t take(BlockList *list, int64_t index) {
    int32_t block = list->items[index];
    list->count--;
    memmove(list->items + index, list->items + index + 1, (size_t)(list->count - index) * sizeof *list->items);
    return block;
}

static int32_t unused_block(Engine *engine) {
    if (engine->spare.count > 0) {
        return engine->spare.items[--engine->spare.count];
    }
    if (engine->num_blocks == engine->block_room) {
        engine->blocks = resized(engine, engine->blocks, 2 * engine->block_room + 1024, sizeof *engine->blocks);
        engine->block_room = 2 * engine->block_room + 1024;
    }
    return counted(engine, engine->num_blocks++);
}

static int32_t new_block(Engine *engine, Block like, int64_t address, int64_t size) {
    int32_t number = unused_block(engine);
    like.address = address;
    like.size = size;
    like.birth = ++engine->num_births;
    like.previous = like.following = NONE;
    engine->blocks[number] = like;
    return number;
}

static void write_log(Engine *engine, int64_t change, const Block *block) {
    Outcome *out = engine->out;
    if (out->block_bytes == NULL) {
        return;
    }
    if (out->num_log_rows == engine->log_room) {
        out->segment_log = resized(engine, out->segment_log, 2 * engine->log_room + 256, sizeof *out->segment_log);
        engine->log_room = 2 * engine->log_room + 256;
    }
    out->segment_log[out->num_log_rows++] = (LogRow){engine->request, change, block->home, block->address, block->size};
}

/* Whether the GPU gives that many bytes more. */
static int is_granted(Engine *engine, int64_t size) {
    Outcome *out = engine->out;
    int64_t reserved = engine->reserved + size;
    if (reserved > engine->rules->capacity) {
        out->least_refused = reserved < out->least_refused ? reserved : out->least_refused;
        return 0;
    }
    out->most_granted = reserved > out->most_granted ? reserved : out->most_granted;
    return 1;
}

/* -- chains */

static int whole(const Block *block) { return block->previous == NONE && block->following == NONE; }

static void link_between(Engine *engine, int32_t number, int32_t previous, int32_t following) {
    engine->blocks[number].previous = previous;
    engine->blocks[number].following = following;
    if (previous != NONE) {
        engine->blocks[previous].following = number;
    }
    if (following != NONE) {
        engine->blocks[following].previous = number;
    }
}

static void swallow(Engine *engine, int32_t number, int32_t neighbour) {
    Block *block = engine->blocks + number, *eaten = engine->blocks + neighbour;
    block->size += eaten->size;
    if (neighbour == block->previous) {
        block->address = eaten->address;
        link_between(engine, number, eaten->previous, block->following);
    } else {
        link_between(engine, number, block->previous, eaten->following);
    }
    append(engine, &engine->spare, neighbour);
}

/* -- free lists */

typedef int Order(const Engine *engine, const Block *a, const Block *b);

static int smaller(const Engine *engine, const Block *a, const Block *b) {
    (void)engine;
    return a->size < b->size;
}

static int ranks_before(const Engine *engine, const Block *a, const Block *b) {
    if (a->size != b->size) {
        return a->size < b->size;
    }
    if (engine->rules->tie_break == BY_BIRTH) {
        return a->birth < b->birth;
    }
    if (engine->rules->tie_break == BY_SEGMENT && a->segment_number != b->segment_number) {
        return a->segment_number < b->segment_number;
    }
    return a->address < b->address;
}

static int lies_before(const Engine *engine, const Block *a, const Block *b) {
    (void)engine;
    return a->address < b->address;
}

static int64_t place_of(const Engine *engine, const BlockList *list, const Block *block, Order *before) {
    int64_t low = 0, high = list->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (before(engine, engine->blocks + list->items[middle], block)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static int64_t first_of(const Engine *engine, const BlockList *free, int64_t size) {
    Block wanted = {.size = size};
    return place_of(engine, free, &wanted, smaller);
}

static FreeList *home_of(Engine *engine, int32_t number) { return engine->lists + engine->blocks[number].home; }

static void put(Engine *engine, int32_t number) {
    Block *block = engine->blocks + number;
    BlockList *free = &home_of(engine, number)->free;
    block->state = FREE;
    block->idle_since = engine->num_lookups;
    insert(engine, free, place_of(engine, free, block, ranks_before), number);
}

static void remove_free(Engine *engine, int32_t number) {
    BlockList *free = &home_of(engine, number)->free;
    int64_t index = place_of(engine, free, engine->blocks + number, ranks_before);
    while (free->items[index] != number) {
        index++;
    }
    take(free, index);
}

static void put_unmapped(Engine *engine, int32_t number) {
    BlockList *unmapped = &home_of(engine, number)->unmapped;
    engine->blocks[number].state = UNMAPPED;
    insert(engine, unmapped, place_of(engine, unmapped, engine->blocks + number, lies_before), number);
}

static void remove_unmapped(Engine *engine, int32_t number) {
    BlockList *unmapped = &home_of(engine, number)->unmapped;
    take(unmapped, place_of(engine, unmapped, engine->blocks + number, lies_before));
}
