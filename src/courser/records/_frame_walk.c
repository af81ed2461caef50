/* The loops over messages, and the header of a batch: what every send goes through, compiled.
 *
 * Same functions, same results as frame_walk_pure.py, which is used where this is not built; what they mean is said
 * there. Positions are those of layout.py. Nothing here raises for what a batch holds: that has one place, in Python.
 */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_xxh3.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian machines only: elsewhere the pure functions do the work"
#endif

enum {
    INTERFACE = 2, /* as in frame_walk_pure.py: changes with arguments and results */
    BATCH_HEADER_SIZE = 256,
    BATCH_SIZE_MAX = 64 * 1024 * 1024,
    BASE_OFFSET_POSITION = 8, /* base_timestamp and origin_timestamp follow */
    ORIGIN_TIMESTAMP_POSITION = 24,
    BATCH_LENGTH_POSITION = 32,
    BATCH_CHECKSUM_POSITION = 40,
    MESSAGE_COUNT_POSITION = 48,
    EXTENSION_POSITION = 52,
    FRAME_SIZE_POSITION = 60,
    STORED_LENGTH_POSITION = 72,
    BODY_HASH_POSITION = 240,
    HEADER_CHECKSUM_POSITION = 248,
    CHECKSUMMED_SIZE = 44, /* of the header: all before the extension but the checksum itself */
    PRODUCER_POSITION = 56, /* of a send from an idempotent producer: its id, epoch, and the number of its first message */
    EPOCH_POSITION = 64,
    SEQUENCE_POSITION = 68,
    PRODUCER_END = 72,
    PRODUCER_SIZE = PRODUCER_END - PRODUCER_POSITION,
    PRODUCER_FLAG = 1, /* the first four bytes of the extension: there is a producer */
    COVERED_PRODUCER_SIZE = 15, /* what the checksum covers of it: flag, id, epoch, number */
    FRAME_HEADER_SIZE = 48,
    CHECKSUM_SIZE = 8, /* at the beginning of a frame, of all that follows */
    OFFSET_DELTA_POSITION = 24,
    LENGTHS_POSITION = 32,
    RESERVED_POSITION = 40,
    LONG_SIZE = 2 * 1024 * 1024, /* bytes whose hash takes so long that other threads should run meanwhile */
};

/* --- arguments --- */

static int
are_so_many(Py_ssize_t argument_count, Py_ssize_t expected, const char *signature)
{
    if (argument_count != expected)
        PyErr_SetString(PyExc_TypeError, signature);
    return argument_count == expected;
}

static int
take_numbers(PyObject *const *arguments, int count, uint64_t *numbers)
{
    for (int i = 0; i < count; i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(arguments[i]);
        if (numbers[i] == UINT64_MAX && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static void
release_buffers(Py_buffer *views, int count)
{
    while (count-- > 0)
        PyBuffer_Release(&views[count]);
}

/* `last_use` says whether the last one is written to. */
static int
take_buffers(PyObject *const *arguments, int count, int last_use, Py_buffer *views)
{
    for (int i = 0; i < count; i++)
        if (PyObject_GetBuffer(arguments[i], &views[i], i + 1 < count ? PyBUF_SIMPLE : last_use) < 0) {
            release_buffers(views, i);
            return 0;
        }
    return 1;
}

/* --- results --- */

/* For the format "N" of Py_BuildValue. Its formats with "#" must not be used: what they call depends on the version of
 * the headers, and a library built with those of 3.13 fails with 3.11 and 3.12.
 */
static PyObject *
bytes_of(const void *data, Py_ssize_t size)
{
    return PyBytes_FromStringAndSize(data, size);
}

/* --- the frames of a batch --- */

/* Both lengths of a frame are read as one number: payload_length above, user_headers_length below. */
static uint64_t
frame_size_of(uint64_t lengths)
{
    return FRAME_HEADER_SIZE + (lengths & UINT32_MAX) + (lengths >> 32);
}

typedef struct {
    uint64_t reserved;
    uint64_t is_numbered;
    uint64_t is_uniform;
} Facts;

/* Follow the lengths from frame to frame. Return whether exactly `count` frames fill the body. */
static int
walk(const uint8_t *body, uint64_t size, uint64_t count, int64_t *starts, uint8_t *checksums, Facts *facts)
{
    const uint64_t first_lengths = load64(body + LENGTHS_POSITION);
    const uint64_t first_size = frame_size_of(first_lengths);
    uint64_t position = 0;
    for (uint64_t number = 0; number < count; number++) {
        if (position + FRAME_HEADER_SIZE > size)
            return 0;
        const uint8_t *frame = body + position;
        const uint64_t lengths = load64(frame + LENGTHS_POSITION);
        starts[number] = (int64_t)position;
        memcpy(checksums + 8 * number, frame, 8);
        facts->reserved |= load64(frame + RESERVED_POSITION);
        facts->is_numbered &= load32(frame + OFFSET_DELTA_POSITION) == number;
        /* Of the same size: the next frame is loaded before this one's lengths have arrived from memory. */
        if (__builtin_expect(lengths == first_lengths, 1)) {
            position += first_size;
        }
        else {
            position += frame_size_of(lengths);
            facts->is_uniform = 0;
        }
    }
    return position == size;
}

static PyObject *
survey(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    if (!are_so_many(argument_count, 2, "survey(body, count)"))
        return NULL;
    const Py_ssize_t count = PyLong_AsSsize_t(arguments[1]);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    Py_buffer body;
    if (PyObject_GetBuffer(arguments[0], &body, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *checksums = NULL, *result = NULL;
    int64_t *starts = NULL;
    if (count < 1 || count > body.len / FRAME_HEADER_SIZE) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    const Py_ssize_t size = count * (Py_ssize_t)sizeof *starts;
    starts = PyMem_Malloc((size_t)size);
    checksums = PyBytes_FromStringAndSize(NULL, count * 8);
    if (starts == NULL || checksums == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Facts facts = {.reserved = 0, .is_numbered = 1, .is_uniform = 1};
    if (walk(body.buf, (uint64_t)body.len, (uint64_t)count, starts, (uint8_t *)PyBytes_AsString(checksums),
             &facts))
        result = Py_BuildValue("nNOOO", facts.is_uniform ? body.len / count : 0,
                               bytes_of(starts, facts.is_uniform ? 0 : size), checksums,
                               facts.reserved ? Py_True : Py_False, facts.is_numbered ? Py_True : Py_False);
    else
        result = Py_NewRef(Py_None);
done:
    PyMem_Free(starts);
    Py_XDECREF(checksums);
    PyBuffer_Release(&body);
    return result;
}

static int
is_between(int64_t number, int64_t first, int64_t last)
{
    return first <= number && number <= last;
}

static PyObject *
first_in_cells(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    if (!are_so_many(argument_count, 7,
                     "first_in_cells(starts, frame_size, count, position, offset, interval, cell)"))
        return NULL;
    int64_t numbers[6];
    for (int i = 0; i < 6; i++) {
        numbers[i] = PyLong_AsLongLong(arguments[i + 1]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    const int64_t frame_size = numbers[0], count = numbers[1], position = numbers[2], offset = numbers[3],
                  interval = numbers[4];
    int64_t cell = numbers[5];
    Py_buffer starts;
    if (PyObject_GetBuffer(arguments[0], &starts, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    uint32_t *offsets = NULL, *positions;
    const char *const starts_at = starts.buf;
    /* An index has 32 bits for each; nothing below leaves 64 bits then. */
    const int is_in_range = is_between(interval, 1, INT32_MAX) &&
                            is_between(count, 1, BATCH_SIZE_MAX / FRAME_HEADER_SIZE) &&
                            is_between(frame_size, 0, BATCH_SIZE_MAX) && is_between(position, 0, UINT32_MAX) &&
                            is_between(offset, 0, UINT32_MAX) && is_between(cell, -(int64_t)UINT32_MAX, UINT32_MAX);
    if (!is_in_range || (!frame_size && starts.len != count * 8))
        goto refuse;
    /* Frames that are the first in their cell: not more than frames, and not more than cells. */
    const int64_t last = frame_size ? (count - 1) * frame_size : (int64_t)load64(starts_at + 8 * (count - 1));
    if (!is_between(last, 0, (int64_t)BATCH_SIZE_MAX * (BATCH_SIZE_MAX / FRAME_HEADER_SIZE)))
        goto refuse;
    const int64_t cell_count = (position + last) / interval - position / interval + 1;
    const size_t room = (size_t)(cell_count < count ? cell_count : count);
    offsets = PyMem_Malloc(2 * room * sizeof *offsets);
    if (offsets == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    positions = offsets + room;
    Py_ssize_t found = 0;
    int64_t cell_end = (cell + 1) * interval;
    for (int64_t number = 0; number < count; number++) {
        const int64_t relative = frame_size ? number * frame_size : (int64_t)load64(starts_at + 8 * number);
        if (!is_between(relative, 0, last))
            goto refuse;
        const int64_t start = position + relative;
        if (start < cell_end)
            continue;
        offsets[found] = (uint32_t)(offset + number);
        positions[found] = (uint32_t)start;
        found++;
        cell = start / interval;
        cell_end = (cell + 1) * interval;
    }
    result = Py_BuildValue("NNL", bytes_of(offsets, found * 4), bytes_of(positions, found * 4), (long long)cell);
    goto done;
refuse:
    PyErr_SetString(PyExc_ValueError, "no such frames, or no such cells");
done:
    PyMem_Free(offsets);
    PyBuffer_Release(&starts);
    return result;
}

/* --- a whole batch --- */

static int
has_producer(const uint8_t *header)
{
    return load32(header + EXTENSION_POSITION) == PRODUCER_FLAG;
}

/* Whether there is no producer, or one whose numbers are in range. */
static int
has_right_producer(const uint8_t *header)
{
    const uint64_t id = load64(header + PRODUCER_POSITION), rest = load64(header + EPOCH_POSITION);
    if (!has_producer(header))
        return !(load32(header + EXTENSION_POSITION) | id | rest);
    /* Epoch, two bytes that are zero, and the number of the first message. */
    return id <= INT64_MAX && !(rest & 0x80000000FFFF8000);
}

/* What the checksum of a batch covers of its header. Returns the size. */
static size_t
cover_header(const uint8_t *header, uint8_t *covered)
{
    memcpy(covered, header, BATCH_CHECKSUM_POSITION);
    memcpy(covered + BATCH_CHECKSUM_POSITION, header + MESSAGE_COUNT_POSITION, 4);
    if (!has_producer(header))
        return CHECKSUMMED_SIZE;
    uint8_t *const producer = covered + CHECKSUMMED_SIZE;
    producer[0] = PRODUCER_FLAG;
    memcpy(producer + 1, header + PRODUCER_POSITION, 10); /* and the epoch */
    memcpy(producer + 11, header + SEQUENCE_POSITION, 4);
    return CHECKSUMMED_SIZE + COVERED_PRODUCER_SIZE;
}

/* Whether the header of a batch is that of a send; the frames and the checksum are not looked at. */
static int
is_sent_header(const uint8_t *header, uint64_t size)
{
    if (size < BATCH_HEADER_SIZE || size > BATCH_SIZE_MAX || load64(header + BATCH_LENGTH_POSITION) != size)
        return 0;
    uint64_t extension = 0;
    for (int position = PRODUCER_END; position < BATCH_HEADER_SIZE; position += 8)
        extension |= load64(header + position);
    const uint64_t count = load32(header + MESSAGE_COUNT_POSITION);
    return !extension && has_right_producer(header) && count &&
           count <= (size - BATCH_HEADER_SIZE) / FRAME_HEADER_SIZE;
}

/* What a send needs to know of a batch that is good. */
typedef struct {
    uint64_t origin_timestamp;
    uint64_t count;
    uint64_t frame_size;
    PyObject *starts;
    PyObject *checksums;
    PyObject *producer; /* NULL if there is none */
} Checked;

/* Check a batch from a producer. Return whether it is good; if not, there may be an error. */
static int
check(const uint8_t *header, uint64_t size, Checked *checked)
{
    if (!is_sent_header(header, size))
        return 0;
    /* Where the only frame begins, and what the checksum covers then: a single message needs no memory. */
    int64_t one_start;
    uint8_t one_covered[CHECKSUMMED_SIZE + COVERED_PRODUCER_SIZE + 8];
    int64_t *starts = &one_start;
    uint8_t *covered = one_covered;
    const uint64_t count = load32(header + MESSAGE_COUNT_POSITION), body_size = size - BATCH_HEADER_SIZE;
    checked->starts = checked->checksums = checked->producer = NULL;
    if (count > 1) {
        starts = PyMem_Malloc(count * sizeof *starts);
        covered = PyMem_Malloc(CHECKSUMMED_SIZE + COVERED_PRODUCER_SIZE + count * 8);
        if (starts == NULL || covered == NULL) {
            PyErr_NoMemory();
            goto done;
        }
    }
    const size_t header_size = cover_header(header, covered);
    uint8_t *const checksums = covered + header_size;
    Facts facts = {.reserved = 0, .is_numbered = 1, .is_uniform = 1};
    if (!walk(header + BATCH_HEADER_SIZE, body_size, count, starts, checksums, &facts) || facts.reserved ||
        !facts.is_numbered ||
        xxh3_64(covered, header_size + count * 8) != load64(header + BATCH_CHECKSUM_POSITION))
        goto done;
    checked->origin_timestamp = load64(header + ORIGIN_TIMESTAMP_POSITION);
    checked->count = count;
    checked->frame_size = facts.is_uniform ? body_size / count : 0;
    checked->starts = bytes_of(starts, facts.is_uniform ? 0 : (Py_ssize_t)(count * sizeof *starts));
    checked->checksums = checked->starts == NULL ? NULL : bytes_of(checksums, (Py_ssize_t)count * 8);
    if (checked->checksums != NULL && has_producer(header)) {
        checked->producer = bytes_of(header + PRODUCER_POSITION, PRODUCER_SIZE);
        if (checked->producer == NULL)
            Py_CLEAR(checked->checksums);
    }
    if (checked->checksums == NULL)
        Py_CLEAR(checked->starts);
done:
    if (starts != &one_start)
        PyMem_Free(starts);
    if (covered != one_covered)
        PyMem_Free(covered);
    return checked->checksums != NULL;
}

static PyObject *
none_without_error(void)
{
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
check_batch(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    Py_buffer batch;
    if (!are_so_many(argument_count, 1, "check_batch(data)") ||
        PyObject_GetBuffer(arguments[0], &batch, PyBUF_SIMPLE) < 0)
        return NULL;
    Checked found;
    PyObject *const result =
        check(batch.buf, (uint64_t)batch.len, &found)
            ? Py_BuildValue(found.producer == NULL ? "KKKNN" : "KKKNNN", (unsigned long long)found.origin_timestamp,
                            (unsigned long long)found.count, (unsigned long long)found.frame_size, found.starts,
                            found.checksums, found.producer)
            : none_without_error();
    PyBuffer_Release(&batch);
    return result;
}

static PyObject *
stamp_header(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    Py_buffer views[3];
    uint64_t numbers[5]; /* base_offset, base_timestamp, origin_timestamp, message_count, frame_size */
    if (!are_so_many(argument_count, 8,
                     "stamp_header(blank, checksums, body, base_offset, base_timestamp, origin_timestamp, "
                     "message_count, frame_size)") ||
        !take_numbers(arguments + 3, 5, numbers) || !take_buffers(arguments, 3, PyBUF_SIMPLE, views))
        return NULL;
    PyObject *result = NULL;
    uint8_t one_covered[CHECKSUMMED_SIZE + 8], *covered = one_covered;
    const size_t checksums_size = (size_t)views[1].len;
    if (views[0].len != BATCH_HEADER_SIZE || numbers[3] > UINT32_MAX || numbers[4] > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no header of a batch, or no such frames");
        goto done;
    }
    if (checksums_size > 8 && (covered = PyMem_Malloc(CHECKSUMMED_SIZE + checksums_size)) == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if ((result = PyByteArray_FromStringAndSize(views[0].buf, BATCH_HEADER_SIZE)) == NULL)
        goto done;
    uint8_t *const header = (uint8_t *)PyByteArray_AsString(result);
    const uint64_t length = BATCH_HEADER_SIZE + (uint64_t)views[2].len;
    const uint32_t message_count = (uint32_t)numbers[3], frame_size = (uint32_t)numbers[4];
    memcpy(header + BASE_OFFSET_POSITION, numbers, 24); /* and base_timestamp, and origin_timestamp */
    memcpy(header + BATCH_LENGTH_POSITION, &length, sizeof length);
    memcpy(header + MESSAGE_COUNT_POSITION, &message_count, sizeof message_count);
    memcpy(header + FRAME_SIZE_POSITION, &frame_size, sizeof frame_size);
    memcpy(header + STORED_LENGTH_POSITION, &length, sizeof length);
    memcpy(covered, header, BATCH_CHECKSUM_POSITION);
    memcpy(covered + BATCH_CHECKSUM_POSITION, header + MESSAGE_COUNT_POSITION, 4);
    memcpy(covered + CHECKSUMMED_SIZE, views[1].buf, checksums_size);
    const uint64_t batch_checksum = xxh3_64(covered, CHECKSUMMED_SIZE + checksums_size);
    memcpy(header + BATCH_CHECKSUM_POSITION, &batch_checksum, sizeof batch_checksum);
    uint64_t body_hash;
    if (views[2].len > LONG_SIZE) {
        Py_BEGIN_ALLOW_THREADS
        body_hash = xxh3_64(views[2].buf, (uint64_t)views[2].len);
        Py_END_ALLOW_THREADS
    }
    else {
        body_hash = xxh3_64(views[2].buf, (uint64_t)views[2].len);
    }
    memcpy(header + BODY_HASH_POSITION, &body_hash, sizeof body_hash);
    const uint64_t header_checksum = xxh3_64(header, HEADER_CHECKSUM_POSITION);
    memcpy(header + HEADER_CHECKSUM_POSITION, &header_checksum, sizeof header_checksum);
done:
    if (covered != one_covered)
        PyMem_Free(covered);
    release_buffers(views, 3);
    return result;
}

/* For tests: the hash of bytes that are copied, in one way. Another hash if the copy is wrong. */
static uint64_t
hash_of_copy(const uint8_t *data, uint64_t size, CopyTail *copy, uint8_t *scratch)
{
    uint64_t head[XXH3_HEAD_SIZE / 8];
    const uint64_t tail_size = size - XXH3_HEAD_SIZE;
    memcpy(head, data, XXH3_HEAD_SIZE);
    memcpy(scratch + 8, data + XXH3_HEAD_SIZE, tail_size);
    const uint64_t hash = copy(scratch, scratch + 8, tail_size, head);
    return memcmp(scratch, data + XXH3_HEAD_SIZE, tail_size) ? ~hash : hash;
}

/* For tests: the hash in every way that this processor has. */
static PyObject *
xxh3(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    Py_buffer data;
    if (!are_so_many(argument_count, 1, "xxh3(data)") || PyObject_GetBuffer(arguments[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint64_t size = (uint64_t)data.len;
    Accumulate *ways[XXH3_WAYS_MAX];
    CopyTail *copy_ways[XXH3_WAYS_MAX];
    const int count = list_ways(ways), copy_count = size < XXH3_HEAD_SIZE ? 0 : list_copy_ways(copy_ways);
    uint8_t *const scratch = PyMem_Malloc(size + 8);
    PyObject *const hashes = scratch == NULL ? PyErr_NoMemory() : PyTuple_New(count + copy_count);
    for (int i = 0; hashes != NULL && i < count + copy_count; i++) {
        const uint64_t hash = i >= count   ? hash_of_copy(data.buf, size, copy_ways[i - count], scratch)
                              : size > 240 ? xxh3_long(data.buf, size, ways[i])
                                           : xxh3_64(data.buf, size);
        PyTuple_SetItem(hashes, i, PyLong_FromUnsignedLongLong(hash));
    }
    PyMem_Free(scratch);
    PyBuffer_Release(&data);
    return hashes;
}

#include "_classic_frames.h"
#include "_frame_writing.h"
#include "_stored_batches.h"
#include "_whole_sends.h"

static PyMethodDef methods[] = {
    {"survey", (PyCFunction)(void (*)(void))survey, METH_FASTCALL, NULL},
    {"first_in_cells", (PyCFunction)(void (*)(void))first_in_cells, METH_FASTCALL, NULL},
    {"check_batch", (PyCFunction)(void (*)(void))check_batch, METH_FASTCALL, NULL},
    {"stamp_header", (PyCFunction)(void (*)(void))stamp_header, METH_FASTCALL, NULL},
    {"survey_classic", (PyCFunction)(void (*)(void))survey_classic, METH_FASTCALL, NULL},
    {"frames_from_classic", (PyCFunction)(void (*)(void))frames_from_classic, METH_FASTCALL, NULL},
    {"take_classic_send", (PyCFunction)(void (*)(void))take_classic_send, METH_FASTCALL, NULL},
    {"take_vsr_send", (PyCFunction)(void (*)(void))take_vsr_send, METH_FASTCALL, NULL},
    {"classic_from_frames", (PyCFunction)(void (*)(void))classic_from_frames, METH_FASTCALL, NULL},
    {"spread_ids", (PyCFunction)(void (*)(void))spread_ids, METH_FASTCALL, NULL},
    {"write_frames", (PyCFunction)(void (*)(void))write_frames, METH_FASTCALL, NULL},
    {"fill_checksums", (PyCFunction)(void (*)(void))fill_checksums, METH_FASTCALL, NULL},
    {"cut_frames", (PyCFunction)(void (*)(void))cut_frames, METH_FASTCALL, NULL},
    {"good_batches", (PyCFunction)(void (*)(void))good_batches, METH_FASTCALL, NULL},
    {"xxh3", (PyCFunction)(void (*)(void))xxh3, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int
state_interface(PyObject *module)
{
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)state_interface}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_courser_frame_walk", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__courser_frame_walk(void)
{
    choose_way();
    return PyModuleDef_Init(&definition);
}
