/* Frames of messages that a client sends, each in one pass: header, payload, hash while it is warm. And frames that a
 * poll takes out of a batch.
 */

/* The bytes of an object, and how many. They are bytes nearly always: then there is nothing to release. */
static const uint8_t *
borrow(PyObject *object, Py_buffer *view, Py_ssize_t *size)
{
    view->obj = NULL;
    if (PyBytes_CheckExact(object)) {
        *size = PyBytes_Size(object);
        return (const uint8_t *)PyBytes_AsString(object);
    }
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return NULL;
    *size = view->len;
    return view->buf;
}

/* Copy an item of a list to `into`, where `room` bytes are. Return how many it has, or -1 with an error set. */
static Py_ssize_t
put_item(PyObject *list, Py_ssize_t number, uint8_t *into, Py_ssize_t room)
{
    Py_buffer view;
    Py_ssize_t size;
    PyObject *const item = PyList_GetItem(list, number);
    const uint8_t *const data = item == NULL ? NULL : borrow(item, &view, &size);
    if (data == NULL)
        return -1;
    if (size > room || size > (Py_ssize_t)UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the frames do not fit");
        size = -1;
    }
    else
        memcpy(into, data, (size_t)size);
    if (view.obj != NULL)
        PyBuffer_Release(&view);
    return size;
}

static void
put_checksum(uint8_t *frame, uint64_t size)
{
    const uint64_t checksum = xxh3_64(frame + CHECKSUM_SIZE, size - CHECKSUM_SIZE);
    memcpy(frame, &checksum, sizeof checksum);
}

/* Put all frames into `into`. Return whether they fill it; if not, an error is set. */
static int
put_frames(const uint8_t *heads, PyObject *payloads, PyObject *blocks, Py_ssize_t count, uint8_t *into, Py_ssize_t room)
{
    for (Py_ssize_t number = 0; number < count; number++) {
        if (room < FRAME_HEADER_SIZE)
            break;
        uint8_t *const frame = into;
        memcpy(frame, heads + number * FRAME_HEADER_SIZE, FRAME_HEADER_SIZE);
        into += FRAME_HEADER_SIZE, room -= FRAME_HEADER_SIZE;
        const Py_ssize_t payload_size = put_item(payloads, number, into, room);
        if (payload_size < 0)
            return 0;
        into += payload_size, room -= payload_size;
        const Py_ssize_t block_size = blocks == Py_None ? 0 : put_item(blocks, number, into, room);
        if (block_size < 0)
            return 0;
        into += block_size, room -= block_size;
        const uint32_t lengths[2] = {(uint32_t)block_size, (uint32_t)payload_size};
        memcpy(frame + LENGTHS_POSITION, lengths, sizeof lengths);
        put_checksum(frame, (uint64_t)(into - frame));
        if (number + 1 == count && !room)
            return 1;
    }
    PyErr_SetString(PyExc_ValueError, "the frames do not fit");
    return 0;
}

static PyObject *
write_frames(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    if (!are_so_many(argument_count, 4, "write_frames(payloads, blocks, heads, into)"))
        return NULL;
    PyObject *const payloads = arguments[0], *const blocks = arguments[1];
    if (!PyList_Check(payloads) || (blocks != Py_None && !PyList_Check(blocks))) {
        PyErr_SetString(PyExc_TypeError, "payloads and blocks are lists");
        return NULL;
    }
    const Py_ssize_t count = PyList_Size(payloads);
    const Py_ssize_t block_count = blocks == Py_None ? count : PyList_Size(blocks);
    Py_buffer views[2];
    if (count < 0 || block_count < 0 || !take_buffers(arguments + 2, 2, PyBUF_WRITABLE, views))
        return NULL;
    int is_written = 0;
    if (!count || block_count != count || views[0].len != count * FRAME_HEADER_SIZE)
        PyErr_SetString(PyExc_ValueError, "not as many of each");
    else
        is_written = put_frames(views[0].buf, payloads, blocks, count, views[1].buf, views[1].len);
    release_buffers(views, 2);
    return is_written ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
fill_checksums(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    if (!are_so_many(argument_count, 2, "fill_checksums(body, count)"))
        return NULL;
    Py_ssize_t count = PyLong_AsSsize_t(arguments[1]);
    Py_buffer body;
    if ((count == -1 && PyErr_Occurred()) || !take_buffers(arguments, 1, PyBUF_WRITABLE, &body))
        return NULL;
    uint8_t *frame = body.buf;
    uint64_t left = (uint64_t)body.len;
    for (; count > 0 && left >= FRAME_HEADER_SIZE; count--) {
        const uint64_t size = frame_size_of(load64(frame + LENGTHS_POSITION));
        if (size > left)
            break;
        put_checksum(frame, size);
        frame += size, left -= size;
    }
    const int is_filled = !left && !count && body.len;
    PyBuffer_Release(&body);
    if (!is_filled) {
        PyErr_SetString(PyExc_ValueError, "the frames do not fill the body");
        return NULL;
    }
    return Py_NewRef(Py_None);
}

static PyObject *
cut_frames(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    Py_buffer body;
    int64_t numbers[3];
    if (!are_so_many(argument_count, 4, "cut_frames(body, skip, count, size_max)"))
        return NULL;
    for (int i = 0; i < 3; i++) {
        numbers[i] = PyLong_AsLongLong(arguments[i + 1]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &body, PyBUF_SIMPLE) < 0)
        return NULL;
    const int64_t skip = numbers[0], count = numbers[1], size_max = numbers[2], size = body.len;
    const uint8_t *const frames = body.buf;
    int64_t position = 0, start = 0, chosen = skip > 0 ? -skip : 0;
    while (chosen < count && position <= size - FRAME_HEADER_SIZE) {
        const int64_t end = position + (int64_t)frame_size_of(load64(frames + position + LENGTHS_POSITION));
        if (end > size || (chosen >= 0 && end - start > size_max))
            break;
        position = end;
        if (++chosen == 0)
            start = position;
    }
    PyBuffer_Release(&body);
    return Py_BuildValue("LLL", (long long)start, (long long)position, (long long)(chosen > 0 ? chosen : 0));
}
