/* Expandable segments: expandable.py. */

static void free_block(Engine *engine, int32_t number);
static int has_addresses(const Engine *engine, int64_t size);
static int32_t open_segment(Engine *engine, int32_t home, int64_t size, int expandable, int64_t address);

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t page_of(const Engine *engine, int32_t home) {
    return engine->lists[home].small ? engine->rules->small_page : engine->rules->large_page;
}

static int64_t range_bytes_of(const Engine *engine, int32_t home) {
    int64_t page = page_of(engine, home);
    return (engine->rules->range_bytes + page - 1) / page * page;
}

static int64_t potential_size(const Engine *engine, int32_t number) {
    const Block *block = engine->blocks + number;
    int grows = block->following != NONE && engine->blocks[block->following].state == UNMAPPED;
    return block->size + (grows ? engine->blocks[block->following].size : 0);
}

static int64_t prefer_holes(const Engine *engine, const BlockList *free, int64_t index) {
    while (index + 1 < free->count && engine->blocks[free->items[index]].expandable &&
           potential_size(engine, free->items[index + 1]) < potential_size(engine, free->items[index])) {
        index++;
    }
    return index;
}

static int map_pages(Engine *engine, int32_t number, int64_t size) {
    Block block = engine->blocks[number];
    int64_t page = page_of(engine, block.home), mapped = (size + page - 1) / page * page;
    if (!is_granted(engine, mapped)) {
        return 0;
    }
    remove_unmapped(engine, number);
    if (mapped < block.size) {
        int32_t rest = new_block(engine, block, block.address + mapped, block.size - mapped);
        link_between(engine, rest, number, block.following);
        put_unmapped(engine, rest);
        engine->blocks[number].size = mapped;
    }
    engine->reserved += mapped;
    write_log(engine, SEGMENT_MAP, engine->blocks + number);
    free_block(engine, number);
    return 1;
}

static int has_room(const Engine *engine, int32_t number, int64_t size) {
    int64_t room = 0;
    for (; room < size && number != NONE && engine->blocks[number].state >= FREE; number = engine->blocks[number].following) {
        room += engine->blocks[number].size;
    }
    return room >= size;
}

static int32_t find_room(Engine *engine, int32_t home, int64_t size) {
    const BlockList *unmapped = &engine->lists[home].unmapped;
    for (int64_t i = 0; i < unmapped->count; i++) {
        int32_t start = unmapped->items[i], before = engine->blocks[start].previous;
        if (before != NONE && engine->blocks[before].state == FREE) {
            start = before;
        }
        if (has_room(engine, start, size)) {
            return start;
        }
    }
    int64_t range_bytes = range_bytes_of(engine, home);
    if (!has_addresses(engine, range_bytes)) {
        return NONE;
    }
    int32_t number = open_segment(engine, home, range_bytes, 1, 0);
    put_unmapped(engine, number);
    return number;
}

static int32_t grow_range(Engine *engine, int32_t home, int64_t size) {
    if (size > range_bytes_of(engine, home)) {
        return NONE;
    }
    int32_t number = find_room(engine, home, size);
    if (number == NONE) {
        return NONE;
    }
    if (engine->blocks[number].state == UNMAPPED && !map_pages(engine, number, least(engine->blocks[number].size, size))) {
        return NONE;
    }
    while (engine->blocks[number].size < size) {
        int32_t unmapped = engine->blocks[number].following;
        int64_t missing = size - engine->blocks[number].size;
        if (!map_pages(engine, unmapped, least(missing, engine->blocks[unmapped].size))) {
            return NONE;
        }
        number = unmapped;
    }
    remove_free(engine, number);
    return number;
}

static void unmap(Engine *engine, int32_t number) {
    Block block = engine->blocks[number];
    int64_t page = page_of(engine, block.home), base = block.segment_address, end = block.address + block.size;
    int64_t first_page = base + (block.address - base + page - 1) / page * page, last_page = base + (end - base) / page * page;
    if (first_page >= last_page) {
        return;
    }
    remove_free(engine, number);
    if (block.address < first_page) {
        int32_t front = new_block(engine, block, block.address, first_page - block.address);
        link_between(engine, front, block.previous, number);
        put(engine, front);
    }
    if (last_page < end) {
        int32_t rest = new_block(engine, block, last_page, end - last_page);
        link_between(engine, rest, number, block.following);
        put(engine, rest);
    }
    engine->blocks[number].address = first_page;
    engine->blocks[number].size = last_page - first_page;
    engine->reserved -= last_page - first_page;
    write_log(engine, SEGMENT_UNMAP, engine->blocks + number);
    int32_t neighbours[] = {engine->blocks[number].previous, engine->blocks[number].following};
    for (int i = 0; i < 2; i++) {
        if (neighbours[i] != NONE && engine->blocks[neighbours[i]].state == UNMAPPED) {
            remove_unmapped(engine, neighbours[i]);
            swallow(engine, number, neighbours[i]);
        }
    }
    put_unmapped(engine, number);
}
