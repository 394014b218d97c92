/* Programs for extents, as tables, and which of them serves what. Of libraries and WebAssembly. */

/* A place where a program stops as an index is out of range: what the extent is, or the register
 * that holds it. */
typedef struct {
  int64_t step, base, offset;
  const char *op;
  int64_t extent, place;
} Stop;

/* Code of integers: rows of four numbers. */
typedef struct {
  const int32_t *rows;
  int64_t count;
} Code;

/* A program, and what computes its numbers from extents. */
typedef struct {
  int64_t words;          /* where its words begin */
  int64_t arena;          /* bytes of scratch memory, at most */
  const int64_t *ranges;  /* least and largest of each extent that its phase needs */
  const int64_t *given;   /* extents that its code takes, by number */
  int64_t given_count;
  const int64_t *start;   /* registers before evaluation */
  int64_t registers, first; /* how many, and the first that is an entry of the table */
  Code code;
  const Code *orders;     /* ways to lay out scratch memory */
  int64_t order_count, peak, least; /* and registers: bytes of it, bytes in any case */
  const int64_t *results; /* registers of all extents of all results */
  const Stop *stops;
  int64_t stop_count;
} Gear;

/* Programs for all extents that are known by then; data decide those of the next phase. Values have
 * numbers: inputs of the model first, then the results of each phase, branch and loop. */
typedef struct {
  int64_t gears, gear_count; /* the first, and how many */
  const int64_t *takes;      /* the values that it takes */
  int64_t inputs;
  int64_t first, results;    /* its results: the first value, and how many */
  int64_t finds, found;      /* extents that it finds: the first, and how many; the last results
                              * are rows and their number */
  const int64_t *needs;      /* the extents that its programs depend on, by number */
  int64_t need_count;
} Phase;

/* Evaluates code: DONE, the row of a question that was answered with no, or less. */
extern int64_t NAME_rt_evaluate(const int32_t *, int64_t, int64_t *);
enum { DONE = -1 };

/* Whether a program of a phase serves extents; if so, `tried` holds its numbers. */
static int serves(const Phase *phase, const Gear *gear, const int64_t *extents, int64_t *tried, int *wide) {
  for (int64_t i = 0; i < phase->need_count; i++) {
    int64_t extent = extents[phase->needs[i]];
    if (extent < gear->ranges[2 * i] || extent > gear->ranges[2 * i + 1]) return 0;
  }
  __builtin_memcpy(tried, gear->start, sizeof(int64_t) * (size_t)gear->registers);
  for (int i = 0; i < gear->given_count; i++) tried[i] = extents[gear->given[i]];
  int64_t reached = NAME_rt_evaluate(gear->code.rows, gear->code.count, tried);
  if (reached != DONE) {
    *wide |= reached < DONE;
    return 0;
  }
  int64_t best = -1, last = -1, peak = gear->order_count ? INT64_MAX : tried[gear->least];
  for (int64_t i = 0; i < gear->order_count; i++, last = i - 1) {
    if (NAME_rt_evaluate(gear->orders[i].rows, gear->orders[i].count, tried) != DONE) {
      *wide = 1;
      return 0;
    }
    if (tried[gear->peak] < peak) {
      peak = tried[gear->peak];
      best = i;
    }
  }
  if (best != last) NAME_rt_evaluate(gear->orders[best].rows, gear->orders[best].count, tried);
  tried[gear->order_count ? gear->peak : gear->least] = peak;
  return 1;
}
