/* Requests that repeat, in a trial: once a repeat ends in the state in which an earlier one ended, what follows is known, and it is
 * left out. repeating.py finds the repeats. */

#define LONGEST_CYCLE 16

static void add_number(Engine *engine, State *state, int64_t number) {
    if (state->count == state->room) {
        state->numbers = resized(engine, state->numbers, 2 * state->room + 1024, sizeof *state->numbers);
        state->room = 2 * state->room + 1024;
    }
    state->numbers[state->count++] = number;
}

static int by_key(const void *a, const void *b) {
    int64_t one = ((const Ranked *)a)->key, other = ((const Ranked *)b)->key;
    return (one > other) - (one < other);
}

/* The blocks that are there, in their order in memory; the first of "ranked" is theirs. */
static int64_t sort_blocks(Engine *engine) {
    if (engine->rank_room < engine->num_blocks) {
        engine->ranked = resized(engine, engine->ranked, engine->block_room, sizeof *engine->ranked);
        engine->ranks = resized(engine, engine->ranks, engine->block_room, sizeof *engine->ranks);
        engine->rank_room = engine->block_room;
    }
    memset(engine->ranks, 0, (size_t)engine->num_blocks * sizeof *engine->ranks);
    for (int64_t i = 0; i < engine->spare.count; i++) {
        engine->ranks[engine->spare.items[i]] = NONE;
    }
    int64_t count = 0;
    for (int32_t number = 0; number < engine->num_blocks; number++) {
        if (engine->ranks[number] != NONE) {
            engine->ranked[count++] = (Ranked){engine->blocks[number].address, number};
        }
    }
    qsort(engine->ranked, (size_t)count, sizeof *engine->ranked, by_key);
    return count;
}

/* The order in which blocks, or their segments, came. Which of them it is decides between blocks of one size. */
static int64_t seniority(const Engine *engine, const Block *block) {
    switch (engine->rules->tie_break) {
    case BY_BIRTH:
        return block->birth;
    case BY_SEGMENT:
        return block->segment_number;
    }
    return 0;
}

static void add_seniorities(Engine *engine, State *state, int64_t count) {
    for (int64_t place = 0; place < count; place++) {
        Ranked *ranked = engine->ranked + place;
        *ranked = (Ranked){seniority(engine, engine->blocks + ranked->number), (int32_t)place};
    }
    qsort(engine->ranked, (size_t)count, sizeof *engine->ranked, by_key);
    int64_t rank = 0;
    for (int64_t i = 0; i < count; i++) {
        rank += i > 0 && engine->ranked[i].key != engine->ranked[i - 1].key;
        engine->ranks[engine->ranked[i].number] = (int32_t)rank;
    }
    for (int64_t place = 0; place < count; place++) {
        add_number(engine, state, engine->ranks[place]);
    }
}

/* "next_block" is the program's number for the next block that it will ask for. */
static void read_state(Engine *engine, State *state, const Stretch *stretch, int64_t next_block) {
    state->count = 0;
    for (int64_t i = 0; i < engine->num_lists; i++) {
        add_number(engine, state, engine->lists[i].released);
    }
    int64_t count = sort_blocks(engine);
    for (int64_t i = 0; i < count; i++) {
        const Block *block = engine->blocks + engine->ranked[i].number;
        int has_previous = block->previous != NONE, has_following = block->following != NONE;
        add_number(engine, state, block->size);
        add_number(engine, state, block->address - block->segment_address);
        add_number(engine, state, block->home * 32 + block->state * 8 + block->expandable * 4 + has_previous * 2 + has_following);
        if (block->state == IN_USE) {
            int is_of_stretch = block->owner >= stretch->first_block;
            add_number(engine, state, is_of_stretch ? block->owner - next_block : block->owner);
        }
    }
    if (engine->rules->tie_break != BY_ADDRESS) {
        add_seniorities(engine, state, count);
    }
}

static int are_equal(const State *one, const State *other) {
    return one->count == other->count && memcmp(one->numbers, other->numbers, (size_t)one->count * sizeof *one->numbers) == 0;
}

/* The blocks of the repeats that were served stand for those of the last ones. */
static void renumber(Engine *engine, const Stretch *stretch, int64_t next_block, int64_t by) {
    for (int64_t block = next_block - 1; block >= stretch->first_block; block--) {
        engine->held[block + by] = engine->held[block];
    }
    for (int64_t number = 0; number < engine->num_blocks; number++) {
        if (engine->blocks[number].owner >= stretch->first_block) {
            engine->blocks[number].owner += by;
        }
    }
}

static int is_power_of_two(int64_t number) { return (number & (number - 1)) == 0; }

static void expect_stretch(Engine *engine, const Stretch *stretches, int64_t num_stretches) {
    engine->num_repeats = engine->repeats_when_kept = 0;
    engine->boundary = engine->stretch < num_stretches ? stretches[engine->stretch].first + stretches[engine->stretch].period : NONE;
}

/* After another repeat: how many of the next requests can be left out.
 *
 * Blocks may change places and be back after a few repeats. So the state after 1, 2, 4, 8, ... repeats is kept, and those after the
 * next few are compared with it. */
static int64_t pass_boundary(Engine *engine, const Stretch *stretches, int64_t num_stretches) {
    const Stretch *stretch = stretches + engine->stretch;
    int64_t done = ++engine->num_repeats, left = stretch->num_repeats - done, left_out = 0;
    int64_t next_block = stretch->first_block + done * stretch->blocks_of_each;
    int is_kept = is_power_of_two(done);
    int64_t since_kept = done - engine->repeats_when_kept;
    if (is_kept || since_kept <= LONGEST_CYCLE) {
        State *kept = engine->states, *now = engine->states + 1;
        read_state(engine, now, stretch, next_block);
        if (done > 1 && since_kept <= LONGEST_CYCLE && are_equal(kept, now)) {
            left_out = left / since_kept * since_kept;
            renumber(engine, stretch, next_block, left_out * stretch->blocks_of_each);
        } else if (is_kept) {
            State before = *kept;
            *kept = *now;
            *now = before;
            engine->repeats_when_kept = done;
        }
    }
    if (left_out == 0 && left > 1) {
        engine->boundary += stretch->period;
    } else {
        engine->stretch++;
        expect_stretch(engine, stretches, num_stretches);
    }
    return left_out * stretch->period;
}
