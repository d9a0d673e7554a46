/* One allocation or free at a time: allocator.py. */

/* -- freeing */

static void free_block(Engine *engine, int32_t number) {
    int64_t num_merged = 0;
    int32_t neighbours[] = {engine->blocks[number].previous, engine->blocks[number].following};
    for (int i = 0; i < 2; i++) {
        if (neighbours[i] != NONE && engine->blocks[neighbours[i]].state == FREE) {
            remove_free(engine, neighbours[i]);
            swallow(engine, number, neighbours[i]);
            num_merged++;
        }
    }
    put(engine, number);
    const Block *block = engine->blocks + number;
    int64_t *num_inactive = engine->num_inactive + home_of(engine, number)->small;
    if (block->expandable) {
        return;
    }
    if (whole(block)) {
        *num_inactive -= num_merged;
        write_log(engine, SEGMENT_IDLE, block);
    } else {
        *num_inactive += 1 - num_merged;
    }
}

static void request_free(Engine *engine, int32_t number) {
    Block *block = engine->blocks + number;
    block->state = PENDING;
    if (engine->num_pending++ == 0) {
        engine->pending.count = 0;
    }
    block->pending_at = counted(engine, engine->pending.count);
    append(engine, &engine->pending, number);
}

static void complete_free(Engine *engine, int32_t number) {
    int64_t owner = engine->blocks[number].owner;
    engine->held[owner] = NONE;
    if (engine->out->completed != NULL) {
        engine->out->completed[owner] = engine->request;
    }
    engine->pending.items[engine->blocks[number].pending_at] = NONE;
    engine->num_pending--;
    free_block(engine, number);
}

/* -- giving back */

static void release(Engine *engine, int32_t number) {
    const Block *block = engine->blocks + number;
    remove_free(engine, number);
    engine->reserved -= block->size;
    write_log(engine, SEGMENT_BUSY, block);
    write_log(engine, SEGMENT_FREE, block);
    append(engine, &engine->spare, number);
}

static void release_idle(Engine *engine, const BlockList *free) {
    BlockList *before = &engine->scratch; /* giving back changes the list */
    before->count = 0;
    for (int64_t i = 0; i < free->count; i++) {
        append(engine, before, free->items[i]);
    }
    for (int64_t i = 0; i < before->count; i++) {
        const Block *block = engine->blocks + before->items[i];
        if (block->expandable) {
            unmap(engine, before->items[i]);
        } else if (whole(block)) {
            release(engine, before->items[i]);
        }
    }
}

static void empty_cache(Engine *engine) {
    engine->out->num_sync_all_streams++;
    for (int64_t i = 0; engine->num_pending > 0; i++) {
        if (engine->pending.items[i] != NONE) {
            complete_free(engine, engine->pending.items[i]);
        }
    }
    for (int64_t i = 0; i < engine->num_lists; i++) {
        if (engine->lists[i].released) {
            release_idle(engine, &engine->lists[i].free);
        }
    }
}

static void release_pool(Engine *engine, int64_t pool) {
    for (int64_t i = 0; i < engine->num_lists; i++) {
        if (engine->lists[i].pool == pool) {
            engine->lists[i].released = 1;
            release_idle(engine, &engine->lists[i].free);
        }
    }
}

static int may_release(const Block *block) { return whole(block) && !block->expandable; }

static int release_oversize(Engine *engine, const BlockList *free, int64_t size) {
    int64_t most = engine->rules->max_split, wanted = size > most ? size : most, released = 0;
    if (most == NO_LIMIT) {
        return 0;
    }
    int64_t index = first_of(engine, free, wanted);
    if (index < free->count && may_release(engine->blocks + free->items[index])) {
        release(engine, free->items[index]);
        return 1;
    }
    while (index-- > 0 && released < wanted && engine->blocks[free->items[index]].size >= most) {
        if (may_release(engine->blocks + free->items[index])) {
            released += engine->blocks[free->items[index]].size;
            release(engine, free->items[index]);
        }
    }
    return released >= wanted;
}

static double mean_idle_age(const Engine *engine) {
    int64_t age = 0, num_idle = 0;
    for (int64_t i = 0; i < engine->num_lists; i++) {
        const FreeList *home = engine->lists + i;
        for (int64_t j = 0; !home->small && home->pool == 0 && j < home->free.count; j++) {
            const Block *block = engine->blocks + home->free.items[j];
            if (whole(block)) {
                age += engine->num_lookups - block->idle_since;
                num_idle++;
            }
        }
    }
    return (double)age / (double)num_idle; /* nothing is as old as the mean of nothing */
}

static int64_t release_older(Engine *engine, const BlockList *free, double least_age) {
    int64_t released = 0, i = 0;
    while (i < free->count) {
        const Block *block = engine->blocks + free->items[i];
        if (may_release(block) && (double)(engine->num_lookups - block->idle_since) >= least_age) {
            released += block->size;
            release(engine, free->items[i]);
        } else {
            i++;
        }
    }
    return released;
}

static void collect_garbage(Engine *engine) {
    int64_t excess = engine->reserved - engine->rules->collect_above, released = 1;
    while (excess > 0 && released > 0) {
        double least_age = mean_idle_age(engine);
        released = 0;
        for (int64_t i = 0; i < engine->num_lists; i++) {
            if (!engine->lists[i].small && engine->lists[i].pool == 0) {
                released += release_older(engine, &engine->lists[i].free, least_age);
            }
        }
        excess -= released;
    }
}

/* -- allocating */

static int32_t best_fit(Engine *engine, FreeList *home, int64_t size) {
    const Rules *rules = engine->rules;
    engine->num_lookups += rules->collect_above < NO_LIMIT && !home->small && home->pool == 0;
    int64_t index = first_of(engine, &home->free, size);
    if (index == home->free.count) {
        return NONE;
    }
    if (rules->expandable) {
        index = prefer_holes(engine, &home->free, index);
    }
    int64_t found = engine->blocks[home->free.items[index]].size;
    if (size < rules->max_split ? found >= rules->max_split : found >= size + rules->non_split_slack) {
        return NONE;
    }
    int32_t number = take(&home->free, index);
    const Block *block = engine->blocks + number;
    if (!block->expandable && whole(block)) {
        write_log(engine, SEGMENT_BUSY, block);
    } else if (!block->expandable) {
        engine->num_inactive[home->small]--;
    }
    return number;
}

static void split(Engine *engine, int32_t number, int64_t size) {
    Block block = engine->blocks[number];
    int32_t rest = new_block(engine, block, block.address + size, block.size - size);
    engine->blocks[number].birth = engine->blocks[rest].birth;
    engine->blocks[number].size = size;
    engine->blocks[rest].birth = block.birth;
    link_between(engine, rest, number, block.following);
    put(engine, rest);
    engine->num_inactive[home_of(engine, number)->small] += !block.expandable;
}

static int has_addresses(const Engine *engine, int64_t size) { return engine->lowest_address - size >= LOWEST_ADDRESS; }

static int32_t open_segment(Engine *engine, int32_t home, int64_t size, int expandable, int64_t address) {
    if (address == 0) {
        address = engine->lowest_address -= size;
    }
    Block block = {.home = home, .segment_number = engine->num_segments++, .segment_address = address};
    block.expandable = (uint8_t)expandable;
    return new_block(engine, block, address, size);
}

static int32_t obtain(Engine *engine, int32_t home, int64_t size, int64_t segment, int64_t address) {
    if (engine->reserved + segment > engine->rules->limit) {
        return NONE;
    }
    if (engine->rules->expandable) {
        return grow_range(engine, home, size);
    }
    if (!is_granted(engine, segment) || !has_addresses(engine, segment)) {
        return NONE;
    }
    int32_t number = open_segment(engine, home, segment, 0, address);
    engine->reserved += segment;
    write_log(engine, SEGMENT_ALLOC, engine->blocks + number);
    return number;
}

static int32_t grow(Engine *engine, int32_t home, int64_t size, int64_t segment, int64_t address) {
    if (engine->reserved > engine->rules->collect_above) {
        collect_garbage(engine);
    }
    int32_t number = obtain(engine, home, size, segment, address);
    if (number == NONE && engine->rules->reject_at_limit && engine->reserved + segment > engine->rules->limit) {
        engine->out->num_oom_rejections++;
        return NONE;
    }
    if (number == NONE && release_oversize(engine, &engine->lists[home].free, size)) {
        number = obtain(engine, home, size, segment, address);
    }
    if (number == NONE) {
        empty_cache(engine);
        engine->out->num_alloc_retries++;
        number = obtain(engine, home, size, segment, address);
    }
    return number;
}

static int32_t allocate(Engine *engine, int32_t home, int64_t size, int64_t segment, int64_t address) {
    const FreeList *list = engine->lists + home;
    int32_t number = best_fit(engine, engine->lists + home, size);
    if (number == NONE) {
        number = grow(engine, home, size, segment, address);
    }
    if (number == NONE) {
        return NONE;
    }
    int may_split = size < engine->rules->max_split || list->small || engine->rules->expandable;
    if (may_split && engine->blocks[number].size - size >= list->least_rest) {
        split(engine, number, size);
    }
    engine->blocks[number].state = IN_USE;
    return number;
}
