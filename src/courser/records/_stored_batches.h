/* Stored batches, as many as lie in a piece of memory: the checks of stored_header.py, without the interpreter's lock.
 *
 * A batch that is not good is for Python to judge: here the walk only ends before it.
 */

#ifndef COURSER_STORED_BATCHES_H
#define COURSER_STORED_BATCHES_H

enum {
    IDENTITY_SIZE = 8, /* the partition's id comes first */
    FORMAT_SIZE = 6,   /* from the extension on: magic and format_version */
    CODEC_POSITION = 58,
    FLAGS_POSITION = 59,
    KEY_ID_POSITION = 64,
    REMOVED_COUNT_POSITION = 68,
    OWNER_POSITION = 80,
    OWNER_SIZE = 24, /* topic_uuid and incarnation */
    ENCODED = 1,
    CODEC_MAX = 4,
    STORED_SIZE_MAX = BATCH_SIZE_MAX + 16,
};

/* Whether `count` numbered frames fill the body, of `frame_size` bytes each unless that is 0. */
static int
are_right_frames(const uint8_t *body, uint64_t size, uint64_t count, uint64_t frame_size)
{
    if (count > size / FRAME_HEADER_SIZE)
        return 0;
    const uint64_t first_lengths = load64(body + LENGTHS_POSITION);
    int is_uniform = 1;
    uint64_t position = 0;
    for (uint64_t number = 0; number < count; number++) {
        if (position + FRAME_HEADER_SIZE > size)
            return 0;
        const uint64_t lengths = load64(body + position + LENGTHS_POSITION);
        if (load32(body + position + OFFSET_DELTA_POSITION) != number)
            return 0;
        is_uniform &= lengths == first_lengths;
        position += frame_size_of(lengths);
    }
    return position == size && (!frame_size || (is_uniform && frame_size == frame_size_of(first_lengths)));
}

static int
is_right_encoding(const uint8_t *header, uint64_t count)
{
    const uint64_t length = load64(header + BATCH_LENGTH_POSITION);
    return header[FLAGS_POSITION] == ENCODED && header[CODEC_POSITION] <= CODEC_MAX &&
           (header[CODEC_POSITION] || load32(header + KEY_ID_POSITION)) &&
           BATCH_HEADER_SIZE + count * FRAME_HEADER_SIZE <= length && length <= BATCH_SIZE_MAX;
}

/* The size of a good batch that starts at `offset` or right after messages that were removed; 0 if there is none. */
static uint64_t
good_batch_size(const uint8_t *header, uint64_t size, const uint8_t *blank, uint64_t offset)
{
    if (size <= BATCH_HEADER_SIZE || memcmp(header + EXTENSION_POSITION, blank + EXTENSION_POSITION, FORMAT_SIZE) ||
        xxh3_64(header, HEADER_CHECKSUM_POSITION) != load64(header + HEADER_CHECKSUM_POSITION) ||
        memcmp(header, blank, IDENTITY_SIZE) || memcmp(header + OWNER_POSITION, blank + OWNER_POSITION, OWNER_SIZE))
        return 0;
    const uint64_t stored_length = load64(header + STORED_LENGTH_POSITION);
    const uint64_t count = load32(header + MESSAGE_COUNT_POSITION);
    const uint64_t base_offset = load64(header + BASE_OFFSET_POSITION);
    const uint64_t removed_count = load32(header + REMOVED_COUNT_POSITION);
    if (stored_length <= BATCH_HEADER_SIZE || stored_length > STORED_SIZE_MAX || stored_length > size || !count ||
        base_offset < removed_count || base_offset - removed_count != offset || base_offset > INT64_MAX)
        return 0;
    const uint8_t *const body = header + BATCH_HEADER_SIZE;
    const uint64_t body_size = stored_length - BATCH_HEADER_SIZE;
    if (xxh3_64(body, body_size) != load64(header + BODY_HASH_POSITION))
        return 0;
    if (header[FLAGS_POSITION])
        return is_right_encoding(header, count) ? stored_length : 0;
    const int is_plain = !header[CODEC_POSITION] && !load32(header + KEY_ID_POSITION) &&
                         load64(header + BATCH_LENGTH_POSITION) == stored_length;
    const uint64_t frame_size = load32(header + FRAME_SIZE_POSITION);
    return is_plain && are_right_frames(body, body_size, count, frame_size) ? stored_length : 0;
}

static PyObject *
good_batches(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    Py_buffer views[2];
    uint64_t offset;
    if (!are_so_many(argument_count, 3, "good_batches(data, blank, offset)") ||
        !take_numbers(arguments + 2, 1, &offset) || !take_buffers(arguments, 2, PyBUF_SIMPLE, views))
        return NULL;
    PyObject *result = NULL;
    if (views[1].len != BATCH_HEADER_SIZE) {
        PyErr_SetString(PyExc_ValueError, "no header of a batch");
        goto done;
    }
    const uint8_t *const data = views[0].buf, *const blank = views[1].buf;
    const uint64_t size = (uint64_t)views[0].len;
    uint64_t position = 0, batch_size;
    /* Megabytes: other threads must not wait for all of them. */
    Py_BEGIN_ALLOW_THREADS
    while ((batch_size = good_batch_size(data + position, size - position, blank, offset))) {
        offset = load64(data + position + BASE_OFFSET_POSITION) + load32(data + position + MESSAGE_COUNT_POSITION);
        position += batch_size;
    }
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("KK", (unsigned long long)position, (unsigned long long)offset);
done:
    release_buffers(views, 2);
    return result;
}

#endif
