"""C++ of :mod:`fedgraph.fusion.kernel`: the training of fusion networks, compiled on the machine that trains.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

from fedgraph.models.native.shared_source import ADAM, MATH, PRODUCTS

SOURCE = (
    MATH
    + PRODUCTS
    + ADAM
    + r"""
// A pass over training samples, a minibatch at a time: logits, their gradient by every parameter, a step of Adam. What
// belongs to a minibatch lies in rows of its samples, as many as "wide", so that a loop over samples is over neighbours
// in memory; owners, pairs of owners and units are counted outside of it.

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

namespace {

enum Graph : Size { NONE = 0, DRAWN = 1, EXPECTED = 2 };
enum Level : Size { NORMAL = 0, LOGIT = 1 };
enum Place : Size { MATRIX, OFFSET, WEIGHT, BIAS, THETA, LAYERS };  // in the lists of parameters

struct Pass {
    Size owners, size, aligned, hidden;  // hidden is 0 for a concatenation: layers follow the embeddings themselves
    Size layers;                 // linear layers behind the mean over owners
    const Size* widths;          // their inputs and outputs, [layers + 1]
    Size graph, level, shared;   // shared: one drawn graph for a whole minibatch
    Size zeros_count;            // absent owners count towards degrees and the mean
    double mean, deviation;      // of the normal distribution whose quantile is the level
    float temperature, smallest; // smallest: distance of edge probabilities from 0 and 1
    float stretch;               // of embeddings that a concatenation keeps, where owners are left out at random

    Size count, batch;
    const Size* rows;            // samples in the order in which they are learned, [count]
    const float* embeddings;     // of all samples, [samples, owners, size]
    const float* there;          // who has each sample, in the order of rows, [count, owners]
    const Size* labels;          // in the order of rows, [count]
    const float* noise;          // [minibatches, pairs, batch], or [minibatches, pairs] of shared graphs

    float* const* values;        // parameters; null for those that the network does not have
    float* const* means;         // moments of Adam; null for parameters that are not trained
    float* const* squares;
    const Size* sizes;           // numbers of each parameter
    const double* decays;
    double first, second, rate, epsilon, taken;
    double* loss;                // mean per sample, for each minibatch
};

float total(const float* values, Size count) {
    constexpr Size LANES = 16;
    float lanes[LANES] = {};
    Size at = 0;
    for (; at + LANES <= count; at += LANES)
        for (Size lane = 0; lane < LANES; ++lane) lanes[lane] += values[at + lane];
    float sum = 0;
    for (; at < count; ++at) sum += values[at];
    for (float lane : lanes) sum += lane;
    return sum;
}

// The quantile of the standard normal distribution to 7 digits (Wichura, AS 241, PPND7), for p from 1e-10 up.
double quantile(double p) {
    const double q = p - 0.5;
    if (std::fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179)
               / (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
    }
    const double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p)) - 1.6;
    const double found = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777)
                         / ((0.12021132975 * r + 0.73700164250) * r + 1.0);
    return q < 0 ? -found : found;
}

class Learner {
  public:
    explicit Learner(const Pass& pass)
        : p_(pass), owners_(pass.owners), hidden_(pass.hidden), wide_((pass.batch + 15) / 16 * 16),
          pairs_(pass.graph == NONE ? 0 : pass.owners * (pass.owners - 1) / 2), places_(LAYERS + 2 * pass.layers),
          gradients_(places_) {
        for (Size place = 0; place < places_; ++place) gradients_[place].resize(p_.values[place] ? p_.sizes[place] : 0);
        there_.resize(owners_ * wide_), counted_.resize(owners_ * wide_);
        gathered_.resize(owners_ * wide_ * p_.size);
        for (auto* each : {&share_, &number_, &totals_, &row_}) each->resize(wide_);
        activations_.resize(p_.layers + 1), slopes_.resize(p_.layers + 1);
        for (Size layer = 0; layer <= p_.layers; ++layer) {
            activations_[layer].resize(p_.widths[layer] * wide_);
            slopes_[layer].resize(p_.widths[layer] * wide_);
        }
        for (auto* each : {&features_, &outputs_, &of_outputs_, &of_features_}) each->resize(owners_ * hidden_ * wide_);
        for (auto* each : {&scale_, &part_, &of_scale_, &of_part_}) each->resize(owners_ * wide_);
        maps_.resize(owners_ * hidden_ * p_.size), offsets_.resize(owners_ * hidden_);
        edges_.resize(pairs_ * wide_), mixing_.resize(pairs_ * wide_), of_pairs_.resize(pairs_ * wide_);
        of_loops_.resize(owners_ * wide_), level_.resize(pairs_), slope_.resize(pairs_);
    }

    void learn(Size step) {
        start_ = step * p_.batch;
        used_ = std::min(p_.batch, p_.count - start_);
        gather();
        if (hidden_) {
            align();
            if (p_.graph != NONE) draw(step);
            convolve();
        } else {
            concatenate();
        }
        forward();
        p_.loss[step] = compare();
        backward();
        if (hidden_) {
            convolve_back();
            align_back();
        }
        move(p_.taken + static_cast<double>(step) + 1.0);
    }

  private:
    const Pass& p_;
    const Size owners_, hidden_, wide_, pairs_, places_;
    Size start_ = 0, used_ = 0;
    std::vector<std::vector<float>> gradients_, activations_, slopes_;
    std::vector<float> there_, counted_, gathered_, share_, number_, totals_, row_;
    std::vector<float> features_, outputs_, of_outputs_, of_features_;  // [owners, hidden, wide]
    std::vector<float> scale_, part_, of_scale_, of_part_;              // [owners, wide]
    std::vector<float> maps_, offsets_;                                 // [owners, hidden, size] and [owners, hidden]
    std::vector<float> edges_, mixing_, of_pairs_, of_loops_, level_, slope_;

    const float* value(Size place) const { return p_.values[place]; }
    float* gradient(Size place) { return gradients_[place].data(); }

    // Copies embeddings, whatever they are where an owner is absent, and who is there.
    void gather() {
        const Size stretch = owners_ * p_.size;
        for (Size b = 0; b < used_; ++b) {
            const float* from = p_.embeddings + p_.rows[start_ + b] * stretch;
            for (Size i = 0; i < owners_; ++i)
                std::copy(from + i * p_.size, from + (i + 1) * p_.size, &gathered_[(i * wide_ + b) * p_.size]);
            for (Size i = 0; i < owners_; ++i) {
                const float here = p_.there[(start_ + b) * owners_ + i];
                there_[i * wide_ + b] = here;
                counted_[i * wide_ + b] = p_.zeros_count ? 1.0f : here;
            }
        }
        for (Size b = 0; b < used_; ++b) {
            float here = 0, number = 0;
            for (Size i = 0; i < owners_; ++i) here += there_[i * wide_ + b], number += counted_[i * wide_ + b];
            number_[b] = std::max(number, 1.0f);
            share_[b] = hidden_ ? here / number_[b] : 1.0f;
        }
    }

    // Features W0' (P_i h_i + o_i) of those who are there: one linear map for each owner, W0' P_i.
    void align() {
        const Size h = hidden_, a = p_.aligned, s = p_.size;
        std::fill(offsets_.begin(), offsets_.end(), 0.0f);
        for (Size i = 0; i < owners_; ++i) {
            Matrix map = transpose(value(WEIGHT), h);
            if (value(MATRIX)) {
                multiply(h, s, a, map, plain(value(MATRIX) + i * a * s, s), 0, &maps_[i * h * s], s);
                map = plain(&maps_[i * h * s], s);
            }
            if (value(OFFSET))
                multiply(1, h, a, plain(value(OFFSET) + i * a, a), plain(value(WEIGHT), h), 0, &offsets_[i * h], h);
            float* own = &features_[i * h * wide_];
            multiply(h, used_, s, map, transpose(&gathered_[i * wide_ * s], s), 0, own, wide_);
            for (Size k = 0; k < h; ++k) {
                float* __restrict row = own + k * wide_;
                const float* __restrict here = &there_[i * wide_];
                const float offset = offsets_[i * h + k];
                for (Size b = 0; b < used_; ++b) row[b] = (row[b] + offset) * here[b];
            }
        }
    }

    void align_back() {
        const Size h = hidden_, a = p_.aligned, s = p_.size;
        for (Size i = 0; i < owners_; ++i) {
            float* own = &of_features_[i * h * wide_];
            const float* here = &there_[i * wide_];
            for (Size k = 0; k < h; ++k) {
                float* __restrict row = own + k * wide_;
                for (Size b = 0; b < used_; ++b) row[b] *= here[b];
                offsets_[i * h + k] = total(row, used_);
            }
            const Matrix inputs = plain(&gathered_[i * wide_ * s], s);
            const float keep = i > 0 ? 1.0f : 0.0f;
            if (!value(MATRIX)) {
                const Matrix flipped = transpose(&gathered_[i * wide_ * s], s);
                multiply(s, h, used_, flipped, transpose(own, wide_), keep, gradient(WEIGHT), h);
                continue;
            }
            float* map = &maps_[i * h * s];
            multiply(h, s, used_, plain(own, wide_), inputs, 0, map, s);
            multiply(a, h, s, plain(value(MATRIX) + i * a * s, s), transpose(map, s), keep, gradient(WEIGHT), h);
            if (p_.means[MATRIX])
                multiply(a, s, h, plain(value(WEIGHT), h), plain(map, s), 0, gradient(MATRIX) + i * a * s, s);
            if (value(OFFSET)) {
                const Matrix column = plain(&offsets_[i * h], 1), line = plain(&offsets_[i * h], h);
                multiply(a, 1, h, plain(value(WEIGHT), h), column, 0, gradient(OFFSET) + i * a, 1);
                multiply(a, h, 1, plain(value(OFFSET) + i * a, 1), line, 1, gradient(WEIGHT), h);
            }
        }
    }

    // Edges S, degrees D = diag((S + I) counted), and the normalised graph D^-1/2 S D^-1/2 of every sample.
    void draw(Size step) {
        const float* theta = value(THETA);
        for (Size pair = 0; pair < pairs_; ++pair) {
            const double p = theta[pair];
            if (p_.graph == EXPECTED) {
                level_[pair] = theta[pair], slope_[pair] = 1.0f;
            } else if (p_.level == LOGIT) {
                level_[pair] = static_cast<float>(std::log(p / (1.0 - p)));
                slope_[pair] = static_cast<float>(1.0 / (p * (1.0 - p)));
            } else {
                const double x = quantile(p);
                level_[pair] = static_cast<float>(p_.mean + p_.deviation * x);
                slope_[pair] = static_cast<float>(p_.deviation * 2.5066282746310002 * std::exp(0.5 * x * x));
            }
        }
        const float sharpness = 1.0f / p_.temperature;
        for (Size pair = 0; pair < pairs_; ++pair) {
            float* __restrict edge = &edges_[pair * wide_];
            if (p_.graph == EXPECTED || p_.shared) {
                const float only = p_.graph == EXPECTED
                    ? level_[pair] : sigmoid((level_[pair] - p_.noise[step * pairs_ + pair]) * sharpness);
                std::fill(edge, edge + used_, only);
                continue;
            }
            const float* __restrict noise = p_.noise + (step * pairs_ + pair) * p_.batch;
            const float level = level_[pair];
            for (Size b = 0; b < used_; ++b) edge[b] = sigmoid((level - noise[b]) * sharpness);
        }
        std::copy(counted_.begin(), counted_.end(), scale_.begin());
        for_pairs([&](Size i, Size j, Size pair) {
            const float* __restrict edge = &edges_[pair * wide_];
            const float *__restrict first = &counted_[i * wide_], *__restrict second = &counted_[j * wide_];
            float *__restrict one = &scale_[i * wide_], *__restrict other = &scale_[j * wide_];
            for (Size b = 0; b < used_; ++b) one[b] += edge[b] * second[b], other[b] += edge[b] * first[b];
        });
        for (Size i = 0; i < owners_; ++i) {
            float* __restrict scale = &scale_[i * wide_];
            for (Size b = 0; b < used_; ++b) scale[b] = 1.0f / std::sqrt(scale[b] > 1.0f ? scale[b] : 1.0f);
        }
        for_pairs([&](Size i, Size j, Size pair) {
            const float* __restrict edge = &edges_[pair * wide_];
            const float *__restrict one = &scale_[i * wide_], *__restrict other = &scale_[j * wide_];
            float* __restrict mixing = &mixing_[pair * wide_];
            for (Size b = 0; b < used_; ++b) mixing[b] = edge[b] * one[b] * other[b];
        });
    }

    template <class Job>
    void for_pairs(Job job) const {
        Size pair = 0;
        for (Size i = 0; i < owners_ && pairs_; ++i)
            for (Size j = i + 1; j < owners_; ++j) job(i, j, pair++);
    }

    // What an owner's own features count: 1 for the skip connection, and its self loop.
    float loop(Size at) const { return p_.graph == NONE ? 1.0f : 1.0f + scale_[at] * scale_[at]; }

    // result += (graph + I) values, for all units; graphs are symmetric
    void mix(const float* values, float* result, Size units) {
        for (Size i = 0; i < owners_; ++i) {
            for (Size b = 0; b < used_; ++b) row_[b] = loop(i * wide_ + b);
            for (Size k = 0; k < units; ++k) {
                const float *__restrict from = values + (i * units + k) * wide_, *__restrict loops = row_.data();
                float* __restrict to = result + (i * units + k) * wide_;
                for (Size b = 0; b < used_; ++b) to[b] += loops[b] * from[b];
            }
        }
        for_pairs([&](Size i, Size j, Size pair) {
            const float* __restrict mixing = &mixing_[pair * wide_];
            for (Size k = 0; k < units; ++k) {
                const Size one = (i * units + k) * wide_, other = (j * units + k) * wide_;
                const float *__restrict first = values + one, *__restrict second = values + other;
                float *__restrict left = result + one, *__restrict right = result + other;
                for (Size b = 0; b < used_; ++b) left[b] += mixing[b] * second[b], right[b] += mixing[b] * first[b];
            }
        });
    }

    // relu((G + I) X + b0) of who is there, and its sum over owners, weighted by their sums in the second layer's graph
    void convolve() {
        const Size h = hidden_;
        for (Size i = 0; i < owners_; ++i)
            for (Size k = 0; k < h; ++k) {
                float* row = &outputs_[(i * h + k) * wide_];
                std::fill(row, row + used_, value(BIAS)[k]);
            }
        mix(features_.data(), outputs_.data(), h);
        std::fill(part_.begin(), part_.end(), 0.0f);
        mix(there_.data(), part_.data(), 1);
        std::fill(activations_[0].begin(), activations_[0].end(), 0.0f);
        for (Size i = 0; i < owners_; ++i) {
            const float* __restrict here = &there_[i * wide_];
            float* __restrict part = &part_[i * wide_];
            for (Size b = 0; b < used_; ++b) part[b] /= number_[b];
            for (Size k = 0; k < h; ++k) {
                float* __restrict out = &outputs_[(i * h + k) * wide_];
                float* __restrict pooled = &activations_[0][k * wide_];
                for (Size b = 0; b < used_; ++b) {
                    out[b] = (out[b] < 0.0f ? 0.0f : out[b]) * here[b];
                    pooled[b] += out[b] * part[b];
                }
            }
        }
    }

    void convolve_back() {
        const Size h = hidden_;
        std::fill(gradients_[BIAS].begin(), gradients_[BIAS].end(), 0.0f);
        std::fill(of_part_.begin(), of_part_.end(), 0.0f);
        for (Size i = 0; i < owners_; ++i) {
            const float* __restrict part = &part_[i * wide_];
            float* __restrict of_part = &of_part_[i * wide_];
            for (Size k = 0; k < h; ++k) {
                const float *__restrict out = &outputs_[(i * h + k) * wide_], *__restrict of = &slopes_[0][k * wide_];
                float* __restrict back = &of_outputs_[(i * h + k) * wide_];
                for (Size b = 0; b < used_; ++b) {
                    of_part[b] += out[b] * of[b];
                    back[b] = out[b] <= 0.0f ? 0.0f : part[b] * of[b];
                }
                gradient(BIAS)[k] += total(back, used_);
            }
            for (Size b = 0; b < used_; ++b) of_part[b] /= number_[b];
        }
        std::fill(of_features_.begin(), of_features_.end(), 0.0f);
        mix(of_outputs_.data(), of_features_.data(), h);
        if (p_.graph != NONE) draw_back();
    }

    // The gradient of entry i, j of a sample's graph, added to of: out_i X_j + of_part_i there_j.
    void of_entry(Size i, Size j, float* __restrict of) const {
        const float *__restrict part = &of_part_[i * wide_], *__restrict here = &there_[j * wide_];
        for (Size b = 0; b < used_; ++b) of[b] += part[b] * here[b];
        for (Size k = 0; k < hidden_; ++k) {
            const float* __restrict out = &of_outputs_[(i * hidden_ + k) * wide_];
            const float* __restrict in = &features_[(j * hidden_ + k) * wide_];
            for (Size b = 0; b < used_; ++b) of[b] += out[b] * in[b];
        }
    }

    void draw_back() {
        std::fill(of_pairs_.begin(), of_pairs_.end(), 0.0f);
        std::fill(of_loops_.begin(), of_loops_.end(), 0.0f);
        for (Size i = 0; i < owners_; ++i) {
            of_entry(i, i, &of_loops_[i * wide_]);
            for (Size b = i * wide_; b < i * wide_ + used_; ++b) of_scale_[b] = 2.0f * of_loops_[b] * scale_[b];
        }
        for_pairs([&](Size i, Size j, Size pair) {
            of_entry(i, j, &of_pairs_[pair * wide_]);
            of_entry(j, i, &of_pairs_[pair * wide_]);
            const float *__restrict of = &of_pairs_[pair * wide_], *__restrict edge = &edges_[pair * wide_];
            const float *__restrict one = &scale_[i * wide_], *__restrict other = &scale_[j * wide_];
            float *__restrict left = &of_scale_[i * wide_], *__restrict right = &of_scale_[j * wide_];
            for (Size b = 0; b < used_; ++b) {
                const float both = of[b] * edge[b];
                left[b] += both * other[b], right[b] += both * one[b];
            }
        });
        // From now on the gradient of degrees, -1/2 D^-3/2; one below 1 is raised to it, whatever edges are.
        for (Size at = 0; at < owners_ * wide_; ++at) {
            const bool free = scale_[at] < 1.0f || counted_[at] > 0.0f;
            of_scale_[at] = free ? -0.5f * of_scale_[at] * scale_[at] * scale_[at] * scale_[at] : 0.0f;
        }
        for_pairs([&](Size i, Size j, Size pair) {
            const float *__restrict of = &of_pairs_[pair * wide_], *__restrict edge = &edges_[pair * wide_];
            const float *__restrict one = &scale_[i * wide_], *__restrict other = &scale_[j * wide_];
            const float *__restrict left = &of_scale_[i * wide_], *__restrict right = &of_scale_[j * wide_];
            const float *__restrict first = &counted_[i * wide_], *__restrict second = &counted_[j * wide_];
            float* __restrict found = row_.data();
            const bool expected = p_.graph == EXPECTED;
            for (Size b = 0; b < used_; ++b) {
                const float all = of[b] * one[b] * other[b] + left[b] * second[b] + right[b] * first[b];
                found[b] = expected ? all : all * edge[b] * (1.0f - edge[b]);
            }
            gradient(THETA)[pair] = total(found, used_) * slope_[pair] / (expected ? 1.0f : p_.temperature);
        });
    }

    void concatenate() {
        for (Size i = 0; i < owners_; ++i)
            for (Size k = 0; k < p_.size; ++k) {
                float* to = &activations_[0][(i * p_.size + k) * wide_];
                for (Size b = 0; b < used_; ++b)
                    to[b] = gathered_[(i * wide_ + b) * p_.size + k] * there_[i * wide_ + b] * p_.stretch;
            }
    }

    void forward() {
        for (Size layer = 0; layer < p_.layers; ++layer) {
            const Size in = p_.widths[layer], out = p_.widths[layer + 1];
            const float *weight = value(LAYERS + 2 * layer), *bias = value(LAYERS + 2 * layer + 1);
            float* made = activations_[layer + 1].data();
            multiply(out, used_, in, transpose(weight, out), plain(activations_[layer].data(), wide_), 0, made, wide_);
            for (Size k = 0; k < out; ++k) {
                float* __restrict row = made + k * wide_;
                for (Size b = 0; b < used_; ++b) row[b] += bias[k] * (layer == 0 ? share_[b] : 1.0f);
                if (layer + 1 < p_.layers)
                    for (Size b = 0; b < used_; ++b) row[b] = row[b] < 0.0f ? 0.0f : row[b];
            }
        }
    }

    // Turns logits into their gradient; returns the loss.
    double compare() {
        const Size classes = p_.widths[p_.layers];
        const float* logits = activations_[p_.layers].data();
        float *of = slopes_[p_.layers].data(), *__restrict top = row_.data();
        const Size* labels = p_.labels + start_;
        std::copy(logits, logits + used_, top);
        for (Size c = 1; c < classes; ++c)
            for (Size b = 0; b < used_; ++b) top[b] = std::max(top[b], logits[c * wide_ + b]);
        double loss = 0;
        const float share = 1.0f / static_cast<float>(used_);
        std::fill(totals_.begin(), totals_.end(), 0.0f);
        for (Size c = 0; c < classes; ++c) {
            const float* __restrict from = logits + c * wide_;
            float *__restrict to = of + c * wide_, *__restrict into = totals_.data();
            for (Size b = 0; b < used_; ++b) to[b] = exponential(from[b] - top[b]), into[b] += to[b];
        }
        for (Size b = 0; b < used_; ++b) {
            loss += std::log(static_cast<double>(totals_[b])) + top[b] - logits[labels[b] * wide_ + b];
            totals_[b] = share / totals_[b];
        }
        for (Size c = 0; c < classes; ++c)
            for (Size b = 0; b < used_; ++b) of[c * wide_ + b] *= totals_[b];
        for (Size b = 0; b < used_; ++b) of[labels[b] * wide_ + b] -= share;
        return loss / used_;
    }

    void backward() {
        for (Size layer = p_.layers; layer-- > 0;) {
            const Size in = p_.widths[layer], out = p_.widths[layer + 1];
            float* of = slopes_[layer + 1].data();
            const float* seen = activations_[layer].data();
            const Matrix columns = transpose(of, wide_);
            multiply(in, out, used_, plain(seen, wide_), columns, 0, gradient(LAYERS + 2 * layer), out);
            if (layer > 0 || hidden_)
                multiply(in, used_, out, plain(value(LAYERS + 2 * layer), out), plain(of, wide_), 0,
                         slopes_[layer].data(), wide_);
            for (Size k = 0; k < out; ++k) {
                float* __restrict row = of + k * wide_;
                if (layer == 0)
                    for (Size b = 0; b < used_; ++b) row[b] *= share_[b];
                gradient(LAYERS + 2 * layer + 1)[k] = total(row, used_);
            }
            if (layer > 0)
                for (Size at = 0; at < in * wide_; ++at) slopes_[layer][at] *= seen[at] > 0.0f ? 1.0f : 0.0f;
        }
    }

    void move(double steps) {
        for (Size place = 0; place < places_; ++place) {
            if (!p_.values[place] || !p_.means[place]) continue;
            const Adam adam({1, p_.first, p_.second, p_.rate, p_.epsilon, p_.decays[place]}, p_.rate, steps);
            float *__restrict value = p_.values[place], *__restrict mean = p_.means[place];
            float *__restrict square = p_.squares[place];
            const float* __restrict of = gradient(place);
            for (Size k = 0; k < p_.sizes[place]; ++k) adam.move(value[k], of[k], mean[k], square[k]);
        }
        if (p_.values[THETA])
            for (Size pair = 0; pair < pairs_; ++pair)
                p_.values[THETA][pair] = limited(p_.values[THETA][pair], p_.smallest, 1.0f - p_.smallest);
    }
};

}  // namespace

// Returns 1 where there is no memory left.
extern "C" int32_t train_fusion(const Pass* pass) {
    try {
        Learner learner(*pass);
        for (Size step = 0; step * pass->batch < pass->count; ++step) learner.learn(step);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
"""
)
