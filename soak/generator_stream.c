/* The bits of src/isotherm/random.py, written again in C, fast enough to feed a test battery.

generator.py compiles this file, loads it, and compares it with isotherm.random bit for bit before
it is used. A stream is a sequence of rows: row r has a key and a tag, and gives the numbers of the
counters 0, 1, ..., width - 1 under that key. */

#include <stddef.h>
#include <stdint.h>

enum { COUNTERS, KEYS, LEAVES, CHAINS, STEPS, SEEDS, BARE };

#define LOT 1024         /* rows made at once, so that the compiler can use vector instructions */
#define MOST_CHAINS 1024
#define BUFFER 16384

typedef struct { uint32_t k0, k1; } Key;

static int kind, reversed, rounds; /* 3 rounds are the generator, fewer a mutant */
static int plain; /* a mutant: a first word of 0 is used as it is */
static uint32_t seed, width, across; /* across: the number of chains, or of leaves */
static uint64_t row;                 /* the next row that is made */
static uint32_t offsets[LOT], masks[LOT];
static uint32_t lot, column; /* where the next number is in the lot */
static Key bases[MOST_CHAINS];
static uint32_t epoch; /* the epoch of `bases`: after 2^32 numbers folded in, the seed changes */
static uint32_t buffer[BUFFER];
static size_t taken;
static uint64_t total;

static inline uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static inline uint32_t hash(uint32_t counter, uint32_t k0, uint32_t k1) {
    return mix(mix(counter * 0x9E3779B9u + k0 + 0x6A09E667u) ^ k1);
}

static inline Key fold(Key key, uint32_t number) {
    Key folded = {
        hash(number, key.k0 + 0x3C6EF372u + 1, key.k1),
        hash(number, key.k1 + 0x3C6EF372u + 3, key.k0),
    };
    return folded;
}

static inline uint32_t bits(uint32_t counter, uint32_t offset, uint32_t mask) {
    uint32_t x = counter + offset;
    x = ((x ^ (x >> 16)) * 0xED5AD4BBu) ^ mask;
    x = (x ^ (x >> 15)) * 0xAC4C1B51u;
    x = (x ^ (x >> 15)) * 0x31848BABu;
    return x ^ (x >> 14);
}

/* Rounds left out: a battery must find this out. */
static inline uint32_t weak_bits(uint32_t counter, uint32_t offset, uint32_t mask) {
    uint32_t x = counter + offset;
    x = ((x ^ (x >> 16)) * 0xED5AD4BBu) ^ mask;
    if (rounds > 1) x = (x ^ (x >> 15)) * 0xAC4C1B51u;
    return x ^ (x >> 14);
}

static inline uint32_t turned(uint32_t x) {
    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
    x = ((x >> 4) & 0x0F0F0F0Fu) | ((x & 0x0F0F0F0Fu) << 4);
    return __builtin_bswap32(x);
}

/* jax.random.key(seed + e): its words are 0 and the seed. */
static Key base(uint32_t e) {
    Key key = {0, seed + e};
    return key;
}

static void make_bases(uint32_t e) {
    uint32_t chains = kind == CHAINS ? across : 1;
    for (uint32_t i = 0; i < chains; i++) bases[i] = fold(fold(base(e), i), 0);
    epoch = e;
}

static inline void set(uint32_t i, Key key, uint32_t tag) {
    if (key.k0 == 0 && !plain) key.k0 = mix(key.k1 + 0xBB67AE85u);
    offsets[i] = mix(key.k0 + tag + 0x6A09E667u);
    masks[i] = mix(key.k1 ^ tag);
}

static void make_lot(void) {
    for (uint32_t i = 0; i < LOT; i++) {
        uint64_t r = row + i;
        uint64_t number = kind == LEAVES || kind == CHAINS ? r / across : r;
        uint32_t e = (uint32_t)(number >> 32), n = (uint32_t)number;
        uint32_t rest = kind == LEAVES || kind == CHAINS ? (uint32_t)(r % across) : 0;
        if (e != epoch) make_bases(e);
        Key bare = {e, n}; /* jax.random.key(number) */
        if (kind == BARE) {
            set(i, bare, 0);
        } else if (kind == SEEDS) {
            set(i, fold(fold(fold(bare, 0), 0), 0), 0);
        } else if (kind == LEAVES) {
            set(i, fold(bases[0], n), 2 * rest * 0x85EBCA6Bu);
        } else if (kind == CHAINS) {
            set(i, fold(bases[rest], n), 0);
        } else if (kind == STEPS) {
            set(i, fold(bases[0], n), 0);
        } else {
            set(i, fold(base(e), n), 0);
        }
    }
    row += LOT;
    lot = column = 0;
}

void start(int kind_, uint32_t seed_, uint32_t width_, uint32_t across_, uint64_t row_,
           int reversed_, int rounds_, int plain_) {
    kind = kind_, seed = seed_, width = width_, across = across_, row = row_;
    reversed = reversed_, rounds = rounds_, plain = plain_;
    total = 0, taken = BUFFER;
    make_bases(0);
    make_lot();
}

void fill(uint32_t *out, size_t n) {
    size_t done = 0;
    while (done < n) {
        if (lot == LOT) make_lot();
        uint32_t count = width - column;
        if (count > n - done) count = (uint32_t)(n - done);
        uint32_t offset = offsets[lot] + column, mask = masks[lot], *to = out + done;
        if (rounds < 3)
            for (uint32_t i = 0; i < count; i++) to[i] = weak_bits(i, offset, mask);
        else
            for (uint32_t i = 0; i < count; i++) to[i] = bits(i, offset, mask);
        done += count, column += count;
        if (column == width) column = 0, lot++;
    }
    if (reversed)
        for (size_t i = 0; i < n; i++) out[i] = turned(out[i]);
    total += n;
}

/* What TestU01 calls for every number. */
unsigned int next(void) {
    if (taken == BUFFER) fill(buffer, BUFFER), taken = 0;
    return buffer[taken++];
}

uint64_t consumed(void) { return total; }
