/* Messages of SDKs 0.5 to 0.8 into stored frames and back, each in one pass: header, payload, hash while it is warm.
 *
 * Only what is usual: all else, and all that is wrong, is refused here and left to classic_decoding.py and
 * classic_encoding.py, which do the same with numpy. Lengths are looked at again where they are followed: the memory is
 * a client's.
 */

enum {
    INDEX_ENTRY_SIZE = 16,
    INDEX_END_POSITION = 4,
    INDEX_TIMESTAMP_POSITION = 8,
    CLASSIC_OFFSET_POSITION = 24,
    CLASSIC_TIMESTAMP_POSITION = 32,
    CLASSIC_ORIGIN_POSITION = 40,
    CLASSIC_LENGTHS_POSITION = 48,
    SHORT_HEADER_SIZE = 56,
    LONG_HEADER_SIZE = 64,
    ID_POSITION = 8,
    ID_SIZE = 16,
    TIMESTAMP_DELTA_POSITION = 28,
};

/* What the messages of one send have in common. */
typedef struct {
    uint64_t absent_id_count;
    uint64_t body_size;
    uint64_t first_origin;
    uint64_t last_origin;
} ClassicSums;

static uint64_t
tail_size_of(uint64_t lengths)
{
    return (lengths & UINT32_MAX) + (lengths >> 32);
}

static int
has_no_id(const uint8_t *message)
{
    return !(load64(message + ID_POSITION) | load64(message + ID_POSITION + 8));
}

/* Look at every message of a section. Return whether all are good, and of a kind that is converted here. */
static int
sum_up_classic(const uint8_t *section, uint64_t size, uint64_t count, uint64_t header_size, const uint64_t *size_maxima,
               ClassicSums *sums)
{
    const uint8_t *const block = section + count * INDEX_ENTRY_SIZE;
    const uint64_t block_size = size - count * INDEX_ENTRY_SIZE;
    uint64_t start = 0, last_offset = 0;
    for (uint64_t number = 0; number < count; number++) {
        const uint8_t *const entry = section + number * INDEX_ENTRY_SIZE, *const message = block + start;
        const uint64_t end = number + 1 < count ? load32(entry + INDEX_END_POSITION) : block_size;
        if (load32(entry) || load64(entry + INDEX_TIMESTAMP_POSITION) || end < start + header_size || end > block_size)
            return 0;
        const uint64_t lengths = load64(message + CLASSIC_LENGTHS_POSITION);
        const uint64_t user_headers_size = lengths & UINT32_MAX, payload_size = lengths >> 32;
        const uint64_t offset = load64(message + CLASSIC_OFFSET_POSITION);
        const uint64_t origin = load64(message + CLASSIC_ORIGIN_POSITION);
        if (header_size + user_headers_size + payload_size != end - start || payload_size > size_maxima[0] ||
            user_headers_size > size_maxima[1] || offset < last_offset)
            return 0;
        /* The short header came with another form of user headers. */
        if (header_size == SHORT_HEADER_SIZE ? user_headers_size != 0 : load64(message + SHORT_HEADER_SIZE) != 0)
            return 0;
        sums->absent_id_count += has_no_id(message);
        sums->body_size += FRAME_HEADER_SIZE + user_headers_size + payload_size;
        if (!number || origin < sums->first_origin)
            sums->first_origin = origin;
        if (!number || origin > sums->last_origin)
            sums->last_origin = origin;
        last_offset = offset;
        start = end;
    }
    return sums->last_origin - sums->first_origin <= UINT32_MAX &&
           sums->body_size <= BATCH_SIZE_MAX - BATCH_HEADER_SIZE;
}

/* Where bytes are taken from or put to, and how far that may go. */
typedef struct {
    uint8_t *at;
    const uint8_t *end;
} Run;

/* Make the frames. Return whether the messages filled the room exactly.
 *
 * The room may be that of the section itself: a frame is shorter than its message, and the index comes first, so no
 * frame reaches a message that was not read. Within a message, all of its header is read before anything is written,
 * and the rest moves towards the beginning by more than eight bytes.
 */
static int
frames_from_messages(Run messages, Run ids, Run frames, uint64_t count, uint64_t header_size, uint64_t first_origin,
                     int64_t *starts, uint8_t *checksums, int *is_uniform)
{
    const uint8_t *const body = frames.at;
    uint64_t first_lengths = 0;
    for (uint64_t number = 0; number < count; number++) {
        if ((uint64_t)(messages.end - messages.at) < header_size)
            return 0;
        const uint8_t *const message = messages.at;
        const uint64_t lengths = load64(message + CLASSIC_LENGTHS_POSITION), tail_size = tail_size_of(lengths);
        const uint64_t frame_size = FRAME_HEADER_SIZE + tail_size;
        if (tail_size > (uint64_t)(messages.end - messages.at) - header_size ||
            frame_size > (uint64_t)(frames.end - frames.at))
            return 0;
        uint8_t *const frame = frames.at;
        const uint8_t *id = message + ID_POSITION;
        if (has_no_id(message)) {
            if (ids.end - ids.at < ID_SIZE)
                return 0;
            id = ids.at;
            ids.at += ID_SIZE;
        }
        const uint32_t timestamp_delta = (uint32_t)(load64(message + CLASSIC_ORIGIN_POSITION) - first_origin);
        /* All of the header behind the checksum: id, both deltas, both lengths, reserved. */
        const uint64_t head[] = {load64(id), load64(id + 8), (uint32_t)number | (uint64_t)timestamp_delta << 32, lengths,
                                 0};
        const uint64_t checksum = chosen_copy_tail(frame + FRAME_HEADER_SIZE, message + header_size, tail_size, head);
        memcpy(frame, &checksum, sizeof checksum);
        memcpy(frame + CHECKSUM_SIZE, head, sizeof head);
        memcpy(checksums + 8 * number, &checksum, sizeof checksum);
        starts[number] = frame - body;
        if (!number)
            first_lengths = lengths;
        *is_uniform &= lengths == first_lengths;
        messages.at += header_size + tail_size;
        frames.at += frame_size;
    }
    return frames.at == frames.end;
}

/* Make the messages. Return where they end, or NULL. */
static uint8_t *
messages_from_frames(Run frames, Run messages, uint64_t count, uint64_t header_size, const uint64_t *bases)
{
    for (uint64_t number = 0; number < count; number++) {
        if (frames.end - frames.at < FRAME_HEADER_SIZE)
            return NULL;
        const uint8_t *const frame = frames.at;
        const uint64_t lengths = load64(frame + LENGTHS_POSITION), tail_size = tail_size_of(lengths);
        const uint64_t message_size = header_size + tail_size;
        if (tail_size > (uint64_t)(frames.end - frames.at) - FRAME_HEADER_SIZE ||
            message_size > (uint64_t)(messages.end - messages.at))
            return NULL;
        if (header_size == SHORT_HEADER_SIZE && (lengths & UINT32_MAX))
            return NULL;
        uint8_t *const message = messages.at;
        const uint64_t offset = bases[0] + load32(frame + OFFSET_DELTA_POSITION);
        const uint64_t origin = bases[2] + load32(frame + TIMESTAMP_DELTA_POSITION);
        memcpy(message + ID_POSITION, frame + ID_POSITION, ID_SIZE);
        memcpy(message + CLASSIC_OFFSET_POSITION, &offset, sizeof offset);
        memcpy(message + CLASSIC_TIMESTAMP_POSITION, &bases[1], sizeof bases[1]);
        memcpy(message + CLASSIC_ORIGIN_POSITION, &origin, sizeof origin);
        memcpy(message + CLASSIC_LENGTHS_POSITION, &lengths, sizeof lengths);
        memset(message + SHORT_HEADER_SIZE, 0, header_size - SHORT_HEADER_SIZE);
        memcpy(message + header_size, frame + FRAME_HEADER_SIZE, tail_size);
        const uint64_t checksum = xxh3_64(message + ID_POSITION, message_size - ID_POSITION);
        memcpy(message, &checksum, sizeof checksum);
        frames.at += FRAME_HEADER_SIZE + tail_size;
        messages.at += message_size;
    }
    return frames.at == frames.end ? messages.at : NULL;
}

static int
is_header_size(uint64_t size)
{
    return size == SHORT_HEADER_SIZE || size == LONG_HEADER_SIZE;
}

static PyObject *
survey_classic(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    uint64_t numbers[4];
    Py_buffer section;
    if (!are_so_many(argument_count, 5, "survey_classic(section, count, header_size, payload_max, headers_max)") ||
        !take_numbers(arguments + 1, 4, numbers) || PyObject_GetBuffer(arguments[0], &section, PyBUF_SIMPLE) < 0)
        return NULL;
    ClassicSums sums = {0, 0, 0, 0};
    const uint64_t count = numbers[0], size = (uint64_t)section.len;
    const int is_good = is_header_size(numbers[1]) && count && count <= size / INDEX_ENTRY_SIZE &&
                        sum_up_classic(section.buf, size, count, numbers[1], numbers + 2, &sums);
    PyBuffer_Release(&section);
    if (!is_good)
        Py_RETURN_NONE;
    return Py_BuildValue("KKK", (unsigned long long)sums.absent_id_count, (unsigned long long)sums.body_size,
                         (unsigned long long)sums.first_origin);
}

/* The frames of `count` messages, as the rest of a tuple: their size or 0, their starts, their checksums. NULL with an
 * error, or without one if the messages did not fill the room.
 */
typedef struct {
    Py_ssize_t frame_size;
    PyObject *starts;
    PyObject *checksums;
} Converted;

static int
convert(Run messages, Run ids, Run frames, uint64_t count, uint64_t header_size, uint64_t first_origin, Converted *made)
{
    const Py_ssize_t size = (Py_ssize_t)(count * sizeof(int64_t)), body_size = frames.end - frames.at;
    int64_t one_start, *starts = count > 1 ? PyMem_Malloc((size_t)size) : &one_start;
    int is_uniform = 1, is_good = 0;
    made->starts = NULL;
    made->checksums = PyBytes_FromStringAndSize(NULL, size);
    if (starts == NULL)
        PyErr_NoMemory();
    if (starts == NULL || made->checksums == NULL)
        goto done;
    uint8_t *const checksums = (uint8_t *)PyBytes_AsString(made->checksums);
    /* Other threads take the lock for longer than a few messages need. */
    if (body_size > LONG_SIZE) {
        Py_BEGIN_ALLOW_THREADS
        is_good = frames_from_messages(messages, ids, frames, count, header_size, first_origin, starts, checksums,
                                       &is_uniform);
        Py_END_ALLOW_THREADS
    }
    else {
        is_good = frames_from_messages(messages, ids, frames, count, header_size, first_origin, starts, checksums,
                                       &is_uniform);
    }
    if (is_good) {
        made->frame_size = is_uniform ? body_size / (Py_ssize_t)count : 0;
        made->starts = bytes_of(starts, is_uniform ? 0 : size);
    }
done:
    if (starts != &one_start)
        PyMem_Free(starts);
    if (made->starts == NULL)
        Py_CLEAR(made->checksums);
    return made->starts != NULL;
}

static Run
run_of(const Py_buffer *view)
{
    return (Run){view->buf, (const uint8_t *)view->buf + view->len};
}

static PyObject *
frames_from_classic(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    uint64_t numbers[3];
    Py_buffer views[3];
    if (!are_so_many(argument_count, 6,
                     "frames_from_classic(section, ids, into, count, header_size, first_origin)") ||
        !take_numbers(arguments + 3, 3, numbers) || !take_buffers(arguments, 3, PyBUF_WRITABLE, views))
        return NULL;
    const uint64_t count = numbers[0], header_size = numbers[1];
    PyObject *result = NULL;
    Converted made;
    if (is_header_size(header_size) && count && count <= (uint64_t)views[0].len / INDEX_ENTRY_SIZE) {
        Run messages = run_of(&views[0]);
        messages.at += count * INDEX_ENTRY_SIZE;
        if (convert(messages, run_of(&views[1]), run_of(&views[2]), count, header_size, numbers[2], &made))
            result = Py_BuildValue("nNN", made.frame_size, made.starts, made.checksums);
    }
    if (result == NULL)
        result = none_without_error();
    release_buffers(views, 3);
    return result;
}

static PyObject *
classic_from_frames(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    uint64_t numbers[6];
    Py_buffer views[2];
    if (!are_so_many(argument_count, 8,
                     "classic_from_frames(body, into, position, count, header_size, base_offset, base_timestamp, "
                     "origin_timestamp)") ||
        !take_numbers(arguments + 2, 6, numbers) || !take_buffers(arguments, 2, PyBUF_WRITABLE, views))
        return NULL;
    uint8_t *end = NULL;
    uint8_t *const into = views[1].buf;
    if (is_header_size(numbers[2]) && numbers[1] && numbers[0] <= (uint64_t)views[1].len) {
        const Run frames = {views[0].buf, (const uint8_t *)views[0].buf + views[0].len};
        const Run messages = {into + numbers[0], into + views[1].len};
        Py_BEGIN_ALLOW_THREADS
        end = messages_from_frames(frames, messages, numbers[1], numbers[2], numbers + 3);
        Py_END_ALLOW_THREADS
    }
    release_buffers(views, 2);
    if (end == NULL)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(end - into);
}

/* Ids for messages without one. Each half is a bijection of a counter: no id comes twice from one seed. */
static PyObject *
spread_ids(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    uint64_t numbers[2]; /* first, count */
    Py_buffer seed;
    if (!are_so_many(argument_count, 3, "spread_ids(seed, first, count)") ||
        !take_numbers(arguments + 1, 2, numbers) || PyObject_GetBuffer(arguments[0], &seed, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *ids = NULL;
    uint64_t count = numbers[1];
    if (seed.len != ID_SIZE || count > BATCH_SIZE_MAX / FRAME_HEADER_SIZE)
        PyErr_SetString(PyExc_ValueError, "no seed, or more ids than messages fit into a batch");
    else
        ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * ID_SIZE);
    if (ids != NULL) {
        const uint64_t passed = numbers[0] * PRIME64_1;
        uint64_t low = load64(seed.buf) + passed, high = load64((const uint8_t *)seed.buf + 8) + passed;
        uint8_t *into = (uint8_t *)PyBytes_AsString(ids);
        for (; count; count--, into += ID_SIZE, low += PRIME64_1, high += PRIME64_1) {
            const uint64_t id[2] = {old_avalanche(low), old_avalanche(high)};
            memcpy(into, id, ID_SIZE);
        }
    }
    PyBuffer_Release(&seed);
    return ids;
}
