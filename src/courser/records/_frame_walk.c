/* The two loops over messages on the path of a send, compiled.
 *
 * Same functions, same results as frame_walk_pure.py, which is used where this is not built; what they mean is said
 * there. Positions are those of layout.py. Nothing here raises for what a batch holds: that has one place, in Python.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian machines only: elsewhere the pure functions do the work"
#endif

enum {
    FRAME_HEADER_SIZE = 48,
    OFFSET_DELTA_POSITION = 24,
    LENGTHS_POSITION = 32,
    RESERVED_POSITION = 40,
};

static uint64_t
load64(const char *from)
{
    uint64_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static uint32_t
load32(const char *from)
{
    uint32_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

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
walk(const char *body, uint64_t size, uint64_t count, int64_t *starts, char *checksums, Facts *facts)
{
    const uint64_t first_lengths = load64(body + LENGTHS_POSITION);
    const uint64_t first_size = frame_size_of(first_lengths);
    uint64_t position = 0;
    for (uint64_t number = 0; number < count; number++) {
        if (position + FRAME_HEADER_SIZE > size)
            return 0;
        const char *frame = body + position;
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
    if (argument_count != 2) {
        PyErr_SetString(PyExc_TypeError, "survey(body, count)");
        return NULL;
    }
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
    if (walk(body.buf, (uint64_t)body.len, (uint64_t)count, starts, PyBytes_AsString(checksums), &facts))
        result = Py_BuildValue("ny#OOO", facts.is_uniform ? body.len / count : 0, (const char *)starts,
                               facts.is_uniform ? 0 : size, checksums, facts.reserved ? Py_True : Py_False,
                               facts.is_numbered ? Py_True : Py_False);
    else
        result = Py_NewRef(Py_None);
done:
    PyMem_Free(starts);
    Py_XDECREF(checksums);
    PyBuffer_Release(&body);
    return result;
}

static PyObject *
first_in_cells(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    (void)module;
    if (argument_count != 7) {
        PyErr_SetString(PyExc_TypeError, "first_in_cells(starts, frame_size, count, position, offset, interval, cell)");
        return NULL;
    }
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
    if (interval < 1 || count < 1 || (!frame_size && starts.len != count * 8)) {
        PyErr_SetString(PyExc_ValueError, "no such frames, or no such cells");
        goto done;
    }
    /* Frames that are the first in their cell: not more than frames, and not more than cells. */
    const int64_t last = frame_size ? (count - 1) * frame_size : (int64_t)load64(starts_at + 8 * (count - 1));
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
        const int64_t start =
            position + (frame_size ? number * frame_size : (int64_t)load64(starts_at + 8 * number));
        if (start < cell_end)
            continue;
        offsets[found] = (uint32_t)(offset + number);
        positions[found] = (uint32_t)start;
        found++;
        cell = start / interval;
        cell_end = (cell + 1) * interval;
    }
    result = Py_BuildValue("y#y#L", (const char *)offsets, found * 4, (const char *)positions, found * 4,
                           (long long)cell);
done:
    PyMem_Free(offsets);
    PyBuffer_Release(&starts);
    return result;
}

static PyMethodDef methods[] = {
    {"survey", (PyCFunction)(void (*)(void))survey, METH_FASTCALL, NULL},
    {"first_in_cells", (PyCFunction)(void (*)(void))first_in_cells, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_frame_walk", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__frame_walk(void)
{
    return PyModuleDef_Init(&definition);
}
