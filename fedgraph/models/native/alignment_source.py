"""C++ of the alignment of peers, compiled on the node that trains; see :mod:`fedgraph.training.alignment.kernel`.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

from fedgraph.models.native.shared_source import ADAM

SOURCE = (
    ADAM
    + r"""
// Aligning one peer with the others in one pass over [peers, parameters]: how they pull, the sum of the pulls, and the
// step of Adam with which the others follow. Every number is read and written once; columns are dealt out to threads.

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Columns that are done for all peers in turn: the peer's own part of them stays in a core's first cache.
constexpr Size BLOCK = 2048;

struct Alignment {
    Size peers, columns, threads;
    AdamSettings adam;
    float power;
    const float* own;         // [columns]
    const float* weights;     // lambda c, [peers]
    float* steps;             // t that each peer's moments have seen, [peers]; null where the others stay as they are
    float* others;            // [peers, columns]
    float* mean;              // first moments [peers, columns]
    float* square;            // second moments
    float* added;             // the sum of the pulls, [columns]
};

struct Absolute {
    static float slope(float difference, float) {
        return static_cast<float>((difference > 0.0f) - (difference < 0.0f));
    }
};

struct Squared {
    static float slope(float difference, float) { return 2.0f * difference; }
};

struct Power {
    static float slope(float difference, float power) {
        return std::copysign(power * std::pow(std::fabs(difference), power - 1.0f), difference) * (difference != 0.0f);
    }
};

template <class Distance>
void stay(const Alignment& a, Size peer, Size start, Size count) {
    const float* __restrict own = a.own + start;
    const float* __restrict other = a.others + peer * a.columns + start;
    float* __restrict added = a.added + start;
    const float weight = a.weights[peer], power = a.power;
    for (Size k = 0; k < count; ++k) added[k] += weight * Distance::slope(own[k] - other[k], power);
}

template <class Distance>
void follow(const Alignment& a, Size peer, Size start, Size count) {
    const float* __restrict own = a.own + start;
    float* __restrict other = a.others + peer * a.columns + start;
    float* __restrict mean = a.mean + peer * a.columns + start;
    float* __restrict square = a.square + peer * a.columns + start;
    float* __restrict added = a.added + start;
    const float weight = a.weights[peer], power = a.power;
    const Adam adam(a.adam, a.adam.rate, a.steps[peer]);
    for (Size k = 0; k < count; ++k) {
        const float pull = weight * Distance::slope(own[k] - other[k], power);
        added[k] += pull;
        adam.move(other[k], -pull, mean[k], square[k]);
    }
}

template <class Distance>
void columns(const Alignment& a, Size from, Size to) {
    for (Size start = from; start < to; start += BLOCK) {
        const Size count = std::min(BLOCK, to - start);
        std::fill(a.added + start, a.added + start + count, 0.0f);
        for (Size peer = 0; peer < a.peers; ++peer) {
            if (a.steps == nullptr) stay<Distance>(a, peer, start, count);
            else follow<Distance>(a, peer, start, count);
        }
    }
}

void share(const Alignment& a, Size from, Size to) {
    if (a.power == 1.0f) columns<Absolute>(a, from, to);
    else if (a.power == 2.0f) columns<Squared>(a, from, to);
    else columns<Power>(a, from, to);
}

}  // namespace

extern "C" void align(const Alignment* alignment) {
    const Alignment& a = *alignment;
    if (a.steps != nullptr)
        for (Size peer = 0; peer < a.peers; ++peer) a.steps[peer] += 1.0f;
    const Size blocks = (a.columns + BLOCK - 1) / BLOCK, threads = std::max<Size>(1, std::min(a.threads, blocks));
    const auto bound = [&](Size part) { return std::min(a.columns, part * blocks / threads * BLOCK); };
    std::vector<std::thread> helpers;
    Size begun = 1;
    try {
        helpers.reserve(threads - 1);
        for (; begun < threads; ++begun)
            helpers.emplace_back([&a, from = bound(begun), to = bound(begun + 1)] { share(a, from, to); });
    } catch (const std::system_error&) {  // there are no more threads to be had
    } catch (const std::bad_alloc&) {
    }
    share(a, 0, bound(1));
    for (Size part = begun; part < threads; ++part) share(a, bound(part), bound(part + 1));
    for (std::thread& helper : helpers) helper.join();
}
"""
)
