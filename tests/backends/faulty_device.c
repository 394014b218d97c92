/* The device of the plug-in treadle-ctoy with queues, and with one fault at a time. */
#define treadle_device_library sound_library
#include "ctoy.c"
#undef treadle_device_library

#include <time.h>

enum fault {
    SOUND, OTHER_VERSION, REFUSED, TOO_SMALL, NAMELESS, NO_COPIES, HALF_STREAMS, SMALL_KERNELS,
    EMPTY_KERNEL, LOST_KERNELS, STRANGE_NAME, UNKNOWN_OP, UNCOUNTED, NONE_THERE, OLDER, NEWER
};

TD_EXPORT int32_t fault, runs_fail, copies_fail, opens_fail, live_streams, live_events, waits;
TD_EXPORT char seen[1024];
int32_t fault = SOUND, runs_fail, copies_fail, opens_fail, live_streams, live_events, waits;
char seen[1024];

struct td_stream { td_device *device; };
struct td_event { struct timespec at; };

static int32_t stream_create(td_device *device, td_stream **stream) {
    *stream = malloc(sizeof **stream);
    (*stream)->device = device;
    live_streams++;
    return TD_OK;
}

static int32_t stream_destroy(td_stream *stream) {
    free(stream);
    live_streams--;
    return TD_OK;
}

static int32_t stream_wait(td_stream *stream, td_event *event) {
    waits++;
    return stream->device && event ? TD_OK : TD_FAILED;
}

static int32_t stream_synchronize(td_stream *stream) {
    return stream->device ? TD_OK : TD_FAILED;
}

static int32_t event_record(td_stream *stream, td_event **event) {
    if (!stream->device) return TD_FAILED;
    *event = malloc(sizeof **event);
    timespec_get(&(*event)->at, TIME_UTC);
    live_events++;
    return TD_OK;
}

static int32_t event_done(td_event *event, int32_t *done) {
    *done = event != NULL;
    return TD_OK;
}

static int32_t event_wait(td_event *event) { return event ? TD_OK : TD_FAILED; }

static int32_t event_destroy(td_event *event) {
    free(event);
    live_events--;
    return TD_OK;
}

static int32_t event_seconds(td_event *start, td_event *end, double *seconds) {
    *seconds = (double)(end->at.tv_sec - start->at.tv_sec) +
               1e-9 * (double)(end->at.tv_nsec - start->at.tv_nsec);
    return TD_OK;
}

/* Writes down what a call says; its result is zeros. */
static int32_t describe(td_device *device, td_stream *stream, const td_call *call) {
    char *end = seen, *limit = seen + sizeof seen;
    end += snprintf(end, limit - end, "%s", call->op);
    for (int32_t i = 0; i < call->n_inputs + call->n_outputs; i++) {
        const td_tensor *t = i < call->n_inputs ? &call->inputs[i] : &call->outputs[i - call->n_inputs];
        end += snprintf(end, limit - end, " %d:", t->dtype);
        for (int32_t k = 0; k < t->ndim; k++) end += snprintf(end, limit - end, "%d,", (int)t->shape[k]);
    }
    for (int32_t i = 0; i < call->n_attributes; i++) {
        const td_attribute *a = &call->attributes[i];
        end += snprintf(end, limit - end, " %s=", a->name);
        if (a->kind == TD_ABSENT) end += snprintf(end, limit - end, "absent");
        if (a->kind == TD_TEXT) end += snprintf(end, limit - end, "'%s'", a->text);
        for (int32_t k = 0; k < a->count; k++)
            end += a->kind == TD_INTS ? snprintf(end, limit - end, "%d,", (int)a->ints[k])
                                      : snprintf(end, limit - end, "%g,", a->floats[k]);
    }
    if (!stream) return td_say(TD_FAILED, "there is no stream");
    for (int32_t i = 0; i < call->n_outputs; i++)
        memset(at(device, call->outputs[i].memory), 0, (size_t)call->outputs[i].nbytes);
    return TD_OK;
}

static int32_t ends(td_device *device, td_stream *stream, const td_call *call) {
    return td_say(runs_fail, "unit %d is on fire", 7);
}

static int32_t odd_answer(const td_call *call) { return 99; }

static int32_t copies(td_device *device, td_stream *stream, void *target, td_memory *source,
                      uint64_t offset, uint64_t nbytes) {
    if (copies_fail) return td_say(copies_fail, "the bus is off");
    return copy_out(device, stream, target, source, offset, nbytes);
}

static int32_t opens(int32_t index, td_device **device) {
    if (opens_fail == 1) return td_say(TD_FAILED, "device %d is in use", index);
    return opens_fail ? TD_OK : open_device(index, device);
}

static int32_t uncounted(int32_t *found) { return td_say(TD_FAILED, "no driver"); }

static int32_t counts_none(int32_t *found) {
    *found = 0;
    return TD_OK;
}

#define FLOATS (TD_SET(TD_FLOAT32) | TD_SET(TD_INT32))
static const td_kernel DESCRIBED[] = {
    {"add", TD_SET(TD_FLOAT32), NULL, add},
    {"tanh", TD_ALL, NULL, ends},
    {"erf", TD_ALL, odd_answer, ends},
    {"sum", FLOATS, NULL, describe},
    {"leaky_relu", FLOATS, NULL, describe},
    {"cast", FLOATS, NULL, describe},
    {"conv", FLOATS, NULL, describe},
    {"resize", FLOATS, NULL, describe},
    {"top_k", FLOATS, NULL, describe},
    {"clip", FLOATS, NULL, describe},
};
static const td_kernel EMPTY[] = {{"add", 1, NULL, add}, {NULL, 0, NULL, NULL}};
static const td_kernel UNKNOWN[] = {{"addd", 1, NULL, add}};

TD_EXPORT const td_library *treadle_device_library(uint32_t version) {
    static td_library made;
    static struct { td_library known; void *more[4]; } newer;
    made = LIBRARY;
    made.name = "ctoy";
    made.kernels = DESCRIBED;
    made.n_kernels = sizeof DESCRIBED / sizeof *DESCRIBED;
    made.copy_out = copies;
    made.open = opens;
    made.stream_create = stream_create;
    made.stream_destroy = stream_destroy;
    made.stream_wait = stream_wait;
    made.stream_synchronize = stream_synchronize;
    made.event_record = event_record;
    made.event_done = event_done;
    made.event_wait = event_wait;
    made.event_destroy = event_destroy;
    made.event_seconds = event_seconds;
    switch (fault) {
    case OTHER_VERSION: made.version = version + 1; break;
    case REFUSED: return NULL;
    case TOO_SMALL: made.size = offsetof(td_library, copy_out); break;
    case NAMELESS: made.name = NULL; break;
    case NO_COPIES: made.copy_in = NULL; made.message = NULL; break;
    case HALF_STREAMS: made.event_done = NULL; break;
    case SMALL_KERNELS: made.kernel_size = 8; break;
    case EMPTY_KERNEL: made.kernels = EMPTY; made.n_kernels = 2; break;
    case LOST_KERNELS: made.kernels = NULL; break;
    case STRANGE_NAME: made.name = "CToy 2"; break;
    case UNKNOWN_OP: made.kernels = UNKNOWN; made.n_kernels = 1; break;
    case UNCOUNTED: made.count = uncounted; break;
    case NONE_THERE: made.count = counts_none; break;
    case OLDER: made.size = offsetof(td_library, fill); break; /* and what lies behind is noise */
    case NEWER:
        newer.known = made;
        newer.known.size = sizeof newer;
        memset(newer.more, 0xAB, sizeof newer.more);
        return &newer.known;
    default: break;
    }
    return &made;
}
