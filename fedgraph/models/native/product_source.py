"""C++ of products of small matrices, over blocks of rows, for the masked networks of graphical models.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

PRODUCTS = r"""
// ------------------------------------------------------------------------------------------------------------ products

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

using Size = int64_t;

#if defined(__AVX512F__)
constexpr Size LANES = 16, UNITS = 8, SIDE = 4;
#elif defined(__AVX__)
constexpr Size LANES = 8, UNITS = 4, SIDE = 2;
#else
constexpr Size LANES = 4, UNITS = 4, SIDE = 2;
#endif
constexpr Size AT_ONCE = 2;           // vectors of rows for which products are added up in registers
constexpr Size ROWS = 256;            // of a block: what it computes stays in a core's cache
constexpr Size STEP = ROWS / LANES;   // vectors from unit to unit
static_assert(ROWS % (LANES * AT_ONCE) == 0, "a block has whole vectors only");

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));

// Values of units in the rows of a block: unit u has the vectors from u * STEP on.
Vector* vectors(float* values) { return reinterpret_cast<Vector*>(values); }

struct AsItIs {
    static Vector finish(Vector found, Vector) { return found; }
};

// What is not a number stays so, that a training which diverges is noticed.
struct Rectified {
    static Vector finish(Vector found, Vector) {
        const Vector zero = {};
        return found < zero ? zero : found;
    }
};

struct ThroughRectified {
    static Vector finish(Vector found, Vector activated) {
        const Vector zero = {};
        return activated <= zero ? zero : found;
    }
};

// A matrix of weights as a product reads it: the entry of output u and input k is at u * across + k * along.
struct Weights {
    const float* values;
    Size across, along;
};

template <Size MANY, class Finish>
inline void product_of(Weights weights, const float* bias, const Vector* inputs, Size many, Vector* outputs,
                       Size used) {
    for (Size at = 0; at < used; at += AT_ONCE) {
        Vector sums[MANY][AT_ONCE];
        for (Size u = 0; u < MANY; ++u)
            for (Size j = 0; j < AT_ONCE; ++j) sums[u][j] = Vector{} + (bias ? bias[u] : 0.0f);
        for (Size k = 0; k < many; ++k) {
            const Vector* input = inputs + k * STEP + at;
            const float* weight = weights.values + k * weights.along;
            for (Size u = 0; u < MANY; ++u)
                for (Size j = 0; j < AT_ONCE; ++j) sums[u][j] += input[j] * weight[u * weights.across];
        }
        for (Size u = 0; u < MANY; ++u)
            for (Size j = 0; j < AT_ONCE; ++j) {
                Vector& place = outputs[u * STEP + at + j];
                place = Finish::finish(sums[u][j], place);
            }
    }
}

// outputs [made] = finish(weights inputs [many] + bias), over so many used vectors of rows
template <class Finish>
void product(Weights weights, const float* bias, const Vector* inputs, Size many, Vector* outputs, Size made,
             Size used) {
    Size u = 0;
    const auto from = [&](Size unit) {
        return Weights{weights.values + unit * weights.across, weights.across, weights.along};
    };
    for (; u + UNITS <= made; u += UNITS)
        product_of<UNITS, Finish>(from(u), bias ? bias + u : nullptr, inputs, many, outputs + u * STEP, used);
    for (; u < made; ++u)
        product_of<1, Finish>(from(u), bias ? bias + u : nullptr, inputs, many, outputs + u * STEP, used);
}

template <Size HIGH, Size WIDE>
inline void outer_of(const Vector* left, const Vector* right, Vector* sums, Size step, Size used) {
    Vector own[HIGH][WIDE];
    for (Size u = 0; u < HIGH; ++u)
        for (Size k = 0; k < WIDE; ++k) own[u][k] = sums[u * step + k];
    for (Size j = 0; j < used; ++j)
        for (Size u = 0; u < HIGH; ++u)
            for (Size k = 0; k < WIDE; ++k) own[u][k] += left[u * STEP + j] * right[k * STEP + j];
    for (Size u = 0; u < HIGH; ++u)
        for (Size k = 0; k < WIDE; ++k) sums[u * step + k] = own[u][k];
}

// sums [high, wide] += left right^T, lane by lane
void outer(const Vector* left, Size high, const Vector* right, Size wide, Vector* sums, Size used) {
    for (Size u = 0; u < high;) {
        const bool whole = u + SIDE <= high;
        for (Size k = 0; k < wide;) {
            const bool broad = k + SIDE <= wide;
            const Vector *rows = left + u * STEP, *columns = right + k * STEP;
            Vector* place = sums + u * wide + k;
            if (whole && broad) outer_of<SIDE, SIDE>(rows, columns, place, wide, used);
            else if (whole) outer_of<SIDE, 1>(rows, columns, place, wide, used);
            else if (broad) outer_of<1, SIDE>(rows, columns, place, wide, used);
            else outer_of<1, 1>(rows, columns, place, wide, used);
            k += broad ? SIDE : 1;
        }
        u += whole ? SIDE : 1;
    }
}

template <Size HIGH>
inline void row_sums_of(const Vector* left, Vector* sums, Size used) {
    Vector own[HIGH];
    for (Size u = 0; u < HIGH; ++u) own[u] = sums[u];
    for (Size j = 0; j < used; ++j)
        for (Size u = 0; u < HIGH; ++u) own[u] += left[u * STEP + j];
    for (Size u = 0; u < HIGH; ++u) sums[u] = own[u];
}

// sums [high] += the sum of left over rows, lane by lane
void row_sums(const Vector* left, Size high, Vector* sums, Size used) {
    Size u = 0;
    for (; u + UNITS <= high; u += UNITS) row_sums_of<UNITS>(left + u * STEP, sums + u, used);
    for (; u < high; ++u) row_sums_of<1>(left + u * STEP, sums + u, used);
}

// The sum of so many lanes, by halves.
template <Size COUNT>
inline float total(const float* lanes) {
    float halves[COUNT / 2];
    for (Size lane = 0; lane < COUNT / 2; ++lane) halves[lane] = lanes[lane] + lanes[lane + COUNT / 2];
    return total<COUNT / 2>(halves);
}

template <>
inline float total<1>(const float* lanes) {
    return *lanes;
}

}  // namespace
"""
