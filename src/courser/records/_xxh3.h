/* XXH3, 64 bits, seed 0, default secret: written from its specification.
 *
 * The package xxhash gives the same numbers, and tests/records/test_frame_walk.py holds both against each other. But
 * for messages that are hashed one by one a call from Python costs more than the hash; and for a large body the package
 * lets go of the interpreter's lock, which another thread then takes for longer than the hash needs.
 */

#ifndef COURSER_XXH3_H
#define COURSER_XXH3_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define COURSER_X86
#include <immintrin.h>
#endif

enum {
    XXH3_STRIPE_SIZE = 64,
    XXH3_SECRET_SIZE = 192,
    XXH3_SECRET_STEP = 8,
    XXH3_LANE_COUNT = 8,
    XXH3_LAST_SECRET_POSITION = XXH3_SECRET_SIZE - XXH3_STRIPE_SIZE,
    XXH3_WAYS_MAX = 2,
};

static const uint32_t PRIME32_1 = 0x9E3779B1U, PRIME32_2 = 0x85EBCA77U, PRIME32_3 = 0xC2B2AE3DU;
static const uint64_t PRIME64_1 = 0x9E3779B185EBCA87ULL, PRIME64_2 = 0xC2B2AE3D27D4EB4FULL,
                      PRIME64_3 = 0x165667B19E3779F9ULL, PRIME64_4 = 0x85EBCA77C2B2AE63ULL,
                      PRIME64_5 = 0x27D4EB2F165667C5ULL;
static const uint64_t PRIME_MIX_1 = 0x165667919E3779F9ULL, PRIME_MIX_2 = 0x9FB21C651E98DF25ULL;

static const uint8_t xxh3_secret[XXH3_SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t
load64(const void *from)
{
    uint64_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline uint32_t
load32(const void *from)
{
    uint32_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline uint64_t
rotated(uint64_t number, int bits)
{
    return number << bits | number >> (64 - bits);
}

/* Both halves of the 128-bit product, as one. */
static inline uint64_t
folded_product(uint64_t left, uint64_t right)
{
    const unsigned __int128 product = (unsigned __int128)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t
avalanche(uint64_t hash)
{
    hash ^= hash >> 37;
    hash *= PRIME_MIX_1;
    return hash ^ hash >> 32;
}

/* The one of XXH64, which the shortest inputs get. */
static inline uint64_t
old_avalanche(uint64_t hash)
{
    hash ^= hash >> 33;
    hash *= PRIME64_2;
    hash ^= hash >> 29;
    hash *= PRIME64_3;
    return hash ^ hash >> 32;
}

static inline uint64_t
mix16(const uint8_t *data, const uint8_t *secret)
{
    return folded_product(load64(data) ^ load64(secret), load64(data + 8) ^ load64(secret + 8));
}

static uint64_t
xxh3_up_to_16(const uint8_t *data, uint64_t size)
{
    const uint8_t *const secret = xxh3_secret;
    if (size > 8) {
        const uint64_t low = load64(data) ^ load64(secret + 24) ^ load64(secret + 32);
        const uint64_t high = load64(data + size - 8) ^ load64(secret + 40) ^ load64(secret + 48);
        return avalanche(size + __builtin_bswap64(low) + high + folded_product(low, high));
    }
    if (size >= 4) {
        uint64_t hash = load32(data + size - 4) + ((uint64_t)load32(data) << 32);
        hash ^= load64(secret + 8) ^ load64(secret + 16);
        hash ^= rotated(hash, 49) ^ rotated(hash, 24);
        hash *= PRIME_MIX_2;
        hash ^= (hash >> 35) + size;
        hash *= PRIME_MIX_2;
        return hash ^ hash >> 28;
    }
    if (size) {
        const uint32_t combined =
            (uint32_t)data[0] << 16 | (uint32_t)data[size >> 1] << 24 | data[size - 1] | (uint32_t)size << 8;
        return old_avalanche(combined ^ (uint64_t)(load32(secret) ^ load32(secret + 4)));
    }
    return old_avalanche(load64(secret + 56) ^ load64(secret + 64));
}

static uint64_t
xxh3_up_to_240(const uint8_t *data, uint64_t size)
{
    const uint8_t *const secret = xxh3_secret;
    uint64_t hash = size * PRIME64_1;
    if (size <= 128) {
        /* From both ends towards the middle. */
        for (uint64_t i = (size - 1) / 32 + 1; i-- > 0;) {
            hash += mix16(data + 16 * i, secret + 32 * i);
            hash += mix16(data + size - 16 * (i + 1), secret + 32 * i + 16);
        }
        return avalanche(hash);
    }
    for (uint64_t i = 0; i < 8; i++)
        hash += mix16(data + 16 * i, secret + 16 * i);
    hash = avalanche(hash);
    for (uint64_t i = 8; i < size / 16; i++)
        hash += mix16(data + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(hash + mix16(data + size - 16, secret + 136 - 17));
}

/* Long inputs: stripes of 64 bytes, each with the secret eight bytes further on. Where the secret ends, so does a block:
 * the lanes are scrambled, and the secret begins anew. */
typedef void Accumulate(uint64_t *lanes, const uint8_t *data, uint64_t stripe_count);

static void
add_stripe(uint64_t *lanes, const uint8_t *data, const uint8_t *secret)
{
    for (int i = 0; i < XXH3_LANE_COUNT; i++) {
        const uint64_t value = load64(data + 8 * i), key = value ^ load64(secret + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += (key & UINT32_MAX) * (key >> 32);
    }
}

static void
accumulate_from(uint64_t *lanes, const uint8_t *data, uint64_t stripe_count, const uint8_t *secret)
{
    const uint8_t *const last_secret = xxh3_secret + XXH3_LAST_SECRET_POSITION;
    for (; stripe_count; stripe_count--, data += XXH3_STRIPE_SIZE) {
        add_stripe(lanes, data, secret);
        secret += XXH3_SECRET_STEP;
        if (secret == last_secret) {
            for (int i = 0; i < XXH3_LANE_COUNT; i++)
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ load64(last_secret + 8 * i)) * PRIME32_1;
            secret = xxh3_secret;
        }
    }
}

static void
accumulate(uint64_t *lanes, const uint8_t *data, uint64_t stripe_count)
{
    accumulate_from(lanes, data, stripe_count, xxh3_secret);
}

#ifdef COURSER_X86

__attribute__((target("avx2"))) static inline __m256i
scrambled_avx2(__m256i sums, const uint8_t *secret)
{
    const __m256i prime = _mm256_set1_epi64x(PRIME32_1);
    sums = _mm256_xor_si256(sums, _mm256_srli_epi64(sums, 47));
    sums = _mm256_xor_si256(sums, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i above = _mm256_mul_epu32(_mm256_srli_epi64(sums, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(sums, prime), _mm256_slli_epi64(above, 32));
}

__attribute__((target("avx2"))) static void
accumulate_avx2(uint64_t *lanes, const uint8_t *data, uint64_t stripe_count)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)lanes);
    __m256i high = _mm256_loadu_si256((const __m256i *)lanes + 1);
    const uint8_t *secret = xxh3_secret, *const last_secret = xxh3_secret + XXH3_LAST_SECRET_POSITION;
    for (; stripe_count; stripe_count--, data += XXH3_STRIPE_SIZE) {
        const __m256i first = _mm256_loadu_si256((const __m256i *)data);
        const __m256i second = _mm256_loadu_si256((const __m256i *)data + 1);
        const __m256i key = _mm256_xor_si256(first, _mm256_loadu_si256((const __m256i *)secret));
        const __m256i next_key = _mm256_xor_si256(second, _mm256_loadu_si256((const __m256i *)secret + 1));
        low = _mm256_add_epi64(low, _mm256_shuffle_epi32(first, _MM_SHUFFLE(1, 0, 3, 2)));
        high = _mm256_add_epi64(high, _mm256_shuffle_epi32(second, _MM_SHUFFLE(1, 0, 3, 2)));
        low = _mm256_add_epi64(low, _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32)));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(next_key, _mm256_srli_epi64(next_key, 32)));
        secret += XXH3_SECRET_STEP;
        if (secret == last_secret) {
            low = scrambled_avx2(low, last_secret);
            high = scrambled_avx2(high, last_secret + 32);
            secret = xxh3_secret;
        }
    }
    _mm256_storeu_si256((__m256i *)lanes, low);
    _mm256_storeu_si256((__m256i *)lanes + 1, high);
}

#endif

/* The ways this processor has, the best one last. */
static int
list_ways(Accumulate **ways)
{
    int count = 0;
    ways[count++] = accumulate;
#ifdef COURSER_X86
    if (__builtin_cpu_supports("avx2"))
        ways[count++] = accumulate_avx2;
#endif
    return count;
}

static void
begin_lanes(uint64_t *lanes)
{
    const uint64_t first[XXH3_LANE_COUNT] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                             PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    memcpy(lanes, first, sizeof first);
}

static uint64_t
merged(const uint64_t *lanes, uint64_t size)
{
    const uint8_t *const secret = xxh3_secret;
    uint64_t hash = size * PRIME64_1;
    for (int i = 0; i < XXH3_LANE_COUNT; i += 2)
        hash += folded_product(lanes[i] ^ load64(secret + 11 + 8 * i), lanes[i + 1] ^ load64(secret + 19 + 8 * i));
    return avalanche(hash);
}

static uint64_t
xxh3_long(const uint8_t *data, uint64_t size, Accumulate *accumulate_stripes)
{
    const uint8_t *const secret = xxh3_secret;
    uint64_t lanes[XXH3_LANE_COUNT];
    begin_lanes(lanes);
    accumulate_stripes(lanes, data, (size - 1) / XXH3_STRIPE_SIZE);
    /* The last 64 bytes once more, whole, wherever the stripes end. */
    add_stripe(lanes, data + size - XXH3_STRIPE_SIZE, secret + XXH3_LAST_SECRET_POSITION - 7);
    return merged(lanes, size);
}

/* Chosen once, when the module is loaded. */
static Accumulate *chosen_accumulate = accumulate;

static inline uint64_t
xxh3_64(const void *data, uint64_t size)
{
    if (size > 240)
        return xxh3_long(data, size, chosen_accumulate);
    return size > 16 ? xxh3_up_to_240(data, size) : xxh3_up_to_16(data, size);
}

/* --- a hash of bytes that are copied --- */

enum { XXH3_HEAD_SIZE = 40 };

/* Copy a tail of so many bytes. Return the hash of `head`, which is not copied, and the tail behind it.
 *
 * The hash comes from where the tail was: what was just written could not be read again at once. The tail may move
 * within its memory, by eight bytes or more towards the beginning.
 */
typedef uint64_t CopyTail(uint8_t *into, const uint8_t *tail, uint64_t tail_size, const uint64_t *head);

/* Inputs from 129 to 240 bytes, as `xxh3_up_to_240`. */
static uint64_t
copy_short_tail(uint8_t *into, const uint8_t *tail, uint64_t tail_size, const uint64_t *head)
{
    const uint8_t *const secret = xxh3_secret;
    const uint64_t size = XXH3_HEAD_SIZE + tail_size;
    uint64_t hash = size * PRIME64_1;
    hash += folded_product(head[0] ^ load64(secret), head[1] ^ load64(secret + 8));
    hash += folded_product(head[2] ^ load64(secret + 16), head[3] ^ load64(secret + 24));
    hash += folded_product(head[4] ^ load64(secret + 32), load64(tail) ^ load64(secret + 40));
    for (uint64_t i = 3; i < 8; i++)
        hash += mix16(tail + 16 * i - XXH3_HEAD_SIZE, secret + 16 * i);
    hash = avalanche(hash);
    for (uint64_t i = 8; i < size / 16; i++)
        hash += mix16(tail + 16 * i - XXH3_HEAD_SIZE, secret + 16 * (i - 8) + 3);
    hash = avalanche(hash + mix16(tail + tail_size - 16, secret + 136 - 17));
    memmove(into, tail, tail_size);
    return hash;
}

static uint64_t
copy_tail(uint8_t *into, const uint8_t *tail, uint64_t tail_size, const uint64_t *head)
{
    const uint64_t size = XXH3_HEAD_SIZE + tail_size;
    if (size > 128 && size <= 240)
        return copy_short_tail(into, tail, tail_size, head);
    uint8_t first[240];
    if (size <= 240) {
        memcpy(first, head, XXH3_HEAD_SIZE);
        memcpy(first + XXH3_HEAD_SIZE, tail, tail_size);
        memmove(into, tail, tail_size);
        return xxh3_64(first, size);
    }
    /* The first stripe has the head in it. */
    const uint8_t *const secret = xxh3_secret;
    const uint64_t in_first = XXH3_STRIPE_SIZE - XXH3_HEAD_SIZE;
    memcpy(first, head, XXH3_HEAD_SIZE);
    memcpy(first + XXH3_HEAD_SIZE, tail, in_first);
    uint64_t lanes[XXH3_LANE_COUNT];
    begin_lanes(lanes);
    add_stripe(lanes, first, secret);
    accumulate_from(lanes, tail + in_first, (size - 1) / XXH3_STRIPE_SIZE - 1, secret + XXH3_SECRET_STEP);
    add_stripe(lanes, tail + tail_size - XXH3_STRIPE_SIZE, secret + XXH3_LAST_SECRET_POSITION - 7);
    memmove(into, tail, tail_size);
    return merged(lanes, size);
}

#ifdef COURSER_X86

/* The lanes of a processor with AVX2: two halves. */
typedef struct {
    __m256i low;
    __m256i high;
} Halves;

__attribute__((target("avx2"))) static inline Halves
with_stripe_avx2(Halves sums, __m256i first, __m256i second, const uint8_t *secret)
{
    const __m256i key = _mm256_xor_si256(first, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i next_key = _mm256_xor_si256(second, _mm256_loadu_si256((const __m256i *)secret + 1));
    sums.low = _mm256_add_epi64(sums.low, _mm256_shuffle_epi32(first, _MM_SHUFFLE(1, 0, 3, 2)));
    sums.high = _mm256_add_epi64(sums.high, _mm256_shuffle_epi32(second, _MM_SHUFFLE(1, 0, 3, 2)));
    sums.low = _mm256_add_epi64(sums.low, _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32)));
    sums.high = _mm256_add_epi64(sums.high, _mm256_mul_epu32(next_key, _mm256_srli_epi64(next_key, 32)));
    return sums;
}

__attribute__((target("avx2"))) static uint64_t
copy_tail_avx2(uint8_t *into, const uint8_t *tail, uint64_t tail_size, const uint64_t *head)
{
    const uint64_t size = XXH3_HEAD_SIZE + tail_size;
    if (size <= 240)
        return copy_tail(into, tail, tail_size, head);
    const uint8_t *secret = xxh3_secret, *const last_secret = xxh3_secret + XXH3_LAST_SECRET_POSITION;
    uint64_t lanes[XXH3_LANE_COUNT];
    begin_lanes(lanes);
    Halves sums = {_mm256_loadu_si256((const __m256i *)lanes), _mm256_loadu_si256((const __m256i *)lanes + 1)};
    /* Loaded first: what is written before them may be the place where they were. */
    const __m256i start = _mm256_loadu_si256((const __m256i *)tail);
    const uint8_t *const end = tail + tail_size;
    const __m256i last = _mm256_loadu_si256((const __m256i *)(end - XXH3_STRIPE_SIZE));
    const __m256i very_last = _mm256_loadu_si256((const __m256i *)(end - XXH3_STRIPE_SIZE) + 1);
    const __m256i first = _mm256_set_epi64x((int64_t)head[3], (int64_t)head[2], (int64_t)head[1], (int64_t)head[0]);
    const __m256i second = _mm256_set_epi64x((int64_t)load64(tail + 16), (int64_t)load64(tail + 8),
                                             (int64_t)load64(tail), (int64_t)head[4]);
    sums = with_stripe_avx2(sums, first, second, secret);
    _mm256_storeu_si256((__m256i *)into, start);
    uint64_t position = XXH3_STRIPE_SIZE - XXH3_HEAD_SIZE;
    for (uint64_t count = (size - 1) / XXH3_STRIPE_SIZE - 1; count; count--, position += XXH3_STRIPE_SIZE) {
        const __m256i one = _mm256_loadu_si256((const __m256i *)(tail + position));
        const __m256i other = _mm256_loadu_si256((const __m256i *)(tail + position) + 1);
        _mm256_storeu_si256((__m256i *)(into + position), one);
        _mm256_storeu_si256((__m256i *)(into + position) + 1, other);
        secret += XXH3_SECRET_STEP;
        if (secret == last_secret) {
            sums.low = scrambled_avx2(sums.low, last_secret);
            sums.high = scrambled_avx2(sums.high, last_secret + 32);
            secret = xxh3_secret;
        }
        sums = with_stripe_avx2(sums, one, other, secret);
    }
    if (secret + XXH3_SECRET_STEP == last_secret) {
        sums.low = scrambled_avx2(sums.low, last_secret);
        sums.high = scrambled_avx2(sums.high, last_secret + 32);
    }
    _mm256_storeu_si256((__m256i *)(into + tail_size - XXH3_STRIPE_SIZE), last);
    _mm256_storeu_si256((__m256i *)(into + tail_size - XXH3_STRIPE_SIZE) + 1, very_last);
    sums = with_stripe_avx2(sums, last, very_last, last_secret - 7);
    _mm256_storeu_si256((__m256i *)lanes, sums.low);
    _mm256_storeu_si256((__m256i *)lanes + 1, sums.high);
    return merged(lanes, size);
}

#endif

static CopyTail *chosen_copy_tail = copy_tail;

/* As `list_ways`. */
static int
list_copy_ways(CopyTail **ways)
{
    int count = 0;
    ways[count++] = copy_tail;
#ifdef COURSER_X86
    if (__builtin_cpu_supports("avx2"))
        ways[count++] = copy_tail_avx2;
#endif
    return count;
}

static void
choose_way(void)
{
    Accumulate *ways[XXH3_WAYS_MAX];
    CopyTail *copy_ways[XXH3_WAYS_MAX];
    chosen_accumulate = ways[list_ways(ways) - 1];
    chosen_copy_tail = copy_ways[list_copy_ways(copy_ways) - 1];
}

#endif
