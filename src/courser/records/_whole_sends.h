/* Whole requests that send messages, from the frame to the batch in one call: the steps in Python cost more than the work.
 *
 * Only what is usual and right: all else is left to the codecs (wire/classic.py, wire/vsr.py), which say what is wrong.
 */

/* --- SDKs 0.5 to 0.8 --- */

enum {
    SEND_CODE = 101,
    SEND_CODE_POSITION = 4,
    SEND_METADATA_POSITION = 12,
};

/* Where the section of a SendMessages frame begins, and how many messages it promises; 0 if it is no such frame.
 *
 * The frame is `length | code | metadata length | metadata`, and then the section; the metadata is stream, topic and
 * partitioning, each with its size in its second byte, and the count.
 */
static uint64_t
section_start(const uint8_t *frame, uint64_t size, uint64_t *count)
{
    if (size < SEND_METADATA_POSITION || load32(frame + SEND_CODE_POSITION) != SEND_CODE)
        return 0;
    const uint64_t metadata_size = load32(frame + SEND_METADATA_POSITION - 4);
    if (metadata_size > size - SEND_METADATA_POSITION)
        return 0;
    const uint64_t end = SEND_METADATA_POSITION + metadata_size;
    uint64_t position = SEND_METADATA_POSITION;
    for (int i = 0; i < 3; i++) {
        if (position + 2 > end)
            return 0;
        position += 2 + (uint64_t)frame[position + 1];
    }
    if (position + 4 != end)
        return 0;
    *count = load32(frame + position);
    return end;
}

/* A body of so many bytes: the beginning of the section, or memory of its own. */
static PyObject *
room_for(PyObject *frame, uint64_t start, uint64_t size, int is_in_place)
{
    if (is_in_place)
        return PySequence_GetSlice(frame, (Py_ssize_t)start, (Py_ssize_t)(start + size));
    PyObject *const memory = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    PyObject *const view = memory == NULL ? NULL : PyMemoryView_FromObject(memory);
    Py_XDECREF(memory);
    return view;
}

static PyObject *
take_classic_send(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    uint64_t numbers[4], count; /* header_size, payload_max, headers_max, in_place_max */
    Py_buffer views[3];         /* the frame, new ids, the body */
    if (!are_so_many(argument_count, 6,
                     "take_classic_send(frame, ids, header_size, payload_max, headers_max, in_place_max)") ||
        !take_numbers(arguments + 2, 4, numbers) || PyObject_GetBuffer(arguments[0], &views[0], PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL, *ids = NULL, *body = NULL;
    int view_count = 1;
    ClassicSums sums = {0, 0, 0, 0};
    const uint8_t *const frame = views[0].buf;
    const uint64_t frame_size = (uint64_t)views[0].len, start = section_start(frame, frame_size, &count);
    const uint64_t section_size = frame_size - start;
    if (!start || !PyMemoryView_Check(arguments[0]) || !is_header_size(numbers[0]) || !count ||
        count > section_size / INDEX_ENTRY_SIZE ||
        !sum_up_classic(frame + start, section_size, count, numbers[0], numbers + 1, &sums)) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    if (sums.absent_id_count)
        ids = PyObject_CallFunction(arguments[1], "K", (unsigned long long)sums.absent_id_count);
    else
        ids = bytes_of("", 0);
    if (ids == NULL || PyObject_GetBuffer(ids, &views[1], PyBUF_SIMPLE) < 0)
        goto done;
    view_count++;
    body = room_for(arguments[0], start, sums.body_size, !views[0].readonly && section_size <= numbers[3]);
    if (body == NULL || PyObject_GetBuffer(body, &views[2], PyBUF_WRITABLE) < 0)
        goto done;
    view_count++;
    Run messages = run_of(&views[0]);
    messages.at += start + count * INDEX_ENTRY_SIZE;
    PyObject *const metadata =
        bytes_of(frame + SEND_METADATA_POSITION, (Py_ssize_t)(start - SEND_METADATA_POSITION));
    Converted made;
    if (metadata == NULL)
        goto done;
    if (convert(messages, run_of(&views[1]), run_of(&views[2]), count, numbers[0], sums.first_origin, &made)) {
        result = Py_BuildValue("NKKOnNN", metadata, (unsigned long long)count, (unsigned long long)sums.first_origin,
                               body, made.frame_size, made.starts, made.checksums);
    }
    else {
        Py_DECREF(metadata);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "too few ids, or the messages have changed");
    }
done:
    release_buffers(views, view_count);
    Py_XDECREF(ids);
    Py_XDECREF(body);
    return result;
}

/* --- SDK 0.9 --- */

enum {
    VSR_HEADER_SIZE = 256,
    VSR_SIZE_POSITION = 48,
    VSR_COMMAND_POSITION = 60,
    VSR_COMMAND_REQUEST = 5,
    VSR_CLIENT_POSITION = 128,
    VSR_CHECKSUM_POSITION = 144,
    VSR_REQUEST_POSITION = 168,
    VSR_OPERATION_POSITION = 176,
    VSR_OPERATION_SEND = 160,
    VSR_SESSION_POSITION = 184,
    VSR_METADATA_POSITION = VSR_HEADER_SIZE + 4,
    VSR_METADATA_SIZE_MAX = 3 * (2 + 255) + 4, /* stream, topic, partitioning, count */
};

static int
has_16_zeros(const uint8_t *at)
{
    return !(load64(at) | load64(at + 8));
}

/* Where the batch of a send begins in its frame; 0 if it is no send, or not one that is carried out. */
static uint64_t
batch_start(const uint8_t *frame, uint64_t size)
{
    if (size < VSR_METADATA_POSITION || load32(frame + VSR_SIZE_POSITION) != size ||
        frame[VSR_COMMAND_POSITION] != VSR_COMMAND_REQUEST || frame[VSR_OPERATION_POSITION] != VSR_OPERATION_SEND ||
        has_16_zeros(frame + VSR_CLIENT_POSITION) || !load64(frame + VSR_REQUEST_POSITION) ||
        !load64(frame + VSR_SESSION_POSITION))
        return 0;
    const uint8_t *const body = frame + VSR_HEADER_SIZE;
    const uint64_t body_size = size - VSR_HEADER_SIZE, metadata_size = load32(body);
    if (metadata_size > VSR_METADATA_SIZE_MAX || metadata_size + 4 > body_size)
        return 0;
    if (!has_16_zeros(frame + VSR_CHECKSUM_POSITION) &&
        (load64(frame + VSR_CHECKSUM_POSITION + 8) || load64(frame + VSR_CHECKSUM_POSITION) != xxh3_64(body, body_size)))
        return 0;
    return VSR_METADATA_POSITION + metadata_size;
}

static PyObject *
take_vsr_send(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    Py_buffer view;
    if (!are_so_many(argument_count, 1, "take_vsr_send(frame)") ||
        PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    const uint8_t *const frame = view.buf;
    const uint64_t size = (uint64_t)view.len, start = batch_start(frame, size);
    Checked found;
    if (start && check(frame + start, size - start, &found))
        result = Py_BuildValue(
            found.producer == NULL ? "NNKNNKKNKNN" : "NNKNNKKNKNNN", bytes_of(frame + VSR_CLIENT_POSITION, 16), bytes_of(frame + VSR_CHECKSUM_POSITION, 16),
            (unsigned long long)load64(frame + VSR_REQUEST_POSITION),
            bytes_of(frame + VSR_HEADER_SIZE, (Py_ssize_t)(start + EXTENSION_POSITION - VSR_HEADER_SIZE)),
            bytes_of(frame + VSR_METADATA_POSITION, (Py_ssize_t)(start - VSR_METADATA_POSITION)),
            (unsigned long long)found.origin_timestamp, (unsigned long long)found.count,
            PySequence_GetSlice(arguments[0], (Py_ssize_t)(start + BATCH_HEADER_SIZE), (Py_ssize_t)size),
            (unsigned long long)found.frame_size, found.starts, found.checksums, found.producer);
    else
        result = none_without_error();
    PyBuffer_Release(&view);
    return result;
}
