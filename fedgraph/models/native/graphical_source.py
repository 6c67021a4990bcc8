"""C++ of :mod:`fedgraph.graphical.network.kernel`: the training of masked networks, compiled on the node that trains.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

from fedgraph.models.native.product_source import PRODUCTS
from fedgraph.models.native.shared_source import MATH

SOURCE = (
    MATH
    + PRODUCTS
    + r"""
// In a masked network no two groups of hidden units share a parameter, and each has a loss of its own. So a task is one
// group of one client: one thread takes it through all steps, a block of rows at a time, and no task waits for another
// or writes what another reads. What comes out depends neither on the number of threads nor on who else is there.
//
// A task's parameters are packed one after the other, without what the graph forbids:
//     for each layer its weights [width, inputs of the layer] and biases [width], then the head [outputs, width] and
//     its biases [outputs].
// Its inputs are units of neighbours, scaled, and flags that tell where a neighbour is missing.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

enum Kind : Size { SQUARED = 0, BINARY = 1, CATEGORICAL = 2 };

struct Training {
    Size clients, groups, units, width, layers;
    Size parameters;            // columns of a model that are trained
    const Size* weights;        // the column at which hidden.l.weight begins, [layers]
    const Size* biases;         // and hidden.l.bias
    Size missing, head, last;   // and missing.weight, head.weight, head.bias
    const Size* first;          // the first unit of each group's feature, and their number, [groups + 1]
    const Size* kinds;          // [groups]
    const Size* begin;          // where the inputs of each task begin, [clients * groups + 1]
    const Size* inputs;         // units, or a feature's number plus the number of units for the flag that it is missing
    const float* mean;          // [clients, units]
    const float* deviation;     // [clients, units]
    const float* base;          // what outputs are when nothing is learned, [clients, units]
    const float* slopes;        // of the loss by an output, for an error of 1, [groups]

    Size rows, columns;         // of each client's table; the last units columns are what is to be learned
    const float* table;         // [clients, columns, rows], not a number for missing
    const Size* counts;         // rows that each client has, [clients]
    const uint8_t* active;      // clients for which anything is to be done, [clients]
    float* models;              // [clients, parameters]
    Size threads;

    Size steps, batch;
    const Size* places;         // rows of each step, [steps, clients, batch], -1 behind them; null: all in one step
    const uint8_t* idle;        // clients that do not move in a step, [steps, clients]
    double first_beta, second_beta, rate;
    float epsilon;
    float* means;               // moments of Adam, [clients, parameters]
    float* squares;
    const float* taken;         // steps that the moments have seen, [clients]

    float* gradients;           // [clients, parameters]: what one step leaves instead of an update; or null
    double* losses;             // sums over all rows, [clients, groups]: nothing is learned; or null
};

struct Free {
    void operator()(float* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};
using Floats = std::unique_ptr<float, Free>;

Floats floats(Size count) {
    return Floats(static_cast<float*>(::operator new(std::max<Size>(count, 1) * sizeof(float), std::align_val_t{64})));
}

// -------------------------------------------------------------------------------------------------------------- a task

// One group of one client.
class Task {
  public:
    Task(const Training& training, Size number)
        : t_(training), client_(number / training.groups), group_(number % training.groups),
          seen_(training.begin[number + 1] - training.begin[number]), inputs_(training.inputs + training.begin[number]),
          unit_(training.first[group_]), outputs_(training.first[group_ + 1] - unit_) {
        find_columns();
        const Size size = static_cast<Size>(columns_.size());
        widest_ = seen_ + t_.layers * t_.width + 2 * outputs_ + 2;
        memory_ = floats(widest_ * ROWS + size * LANES + 4 * size);
        float* next = memory_.get();
        const auto take = [&](Size count) {
            float* taken = next;
            next += count;
            return taken;
        };
        layers_.push_back(take(seen_ * ROWS));
        for (Size layer = 0; layer < t_.layers; ++layer) layers_.push_back(take(t_.width * ROWS));
        found_ = take(outputs_ * ROWS);
        wanted_ = take(outputs_ * ROWS);
        observed_ = take(ROWS);
        row_ = take(ROWS);
        sums_ = take(size * LANES);
        model_ = take(size), gradient_ = take(size), mean_ = take(size), square_ = take(size);
        pack(t_.models, model_);
    }

    void train() {
        if (!seen_) return;
        pack(t_.means, mean_);
        pack(t_.squares, square_);
        double taken = t_.taken[client_];
        for (Size step = 0; step < t_.steps; ++step) {
            if (t_.idle[step * t_.clients + client_]) continue;
            differentiate(step);
            move(++taken);
        }
        unpack(model_, t_.models);
        unpack(mean_, t_.means);
        unpack(square_, t_.squares);
    }

    void leave_gradient() {
        if (!seen_) return;
        differentiate(0);
        unpack(gradient_, t_.gradients);
    }

    void measure() {
        double loss = 0;
        for (Size start = 0; start < t_.counts[client_]; start += ROWS) {
            forward(nullptr, start, std::min(ROWS, t_.counts[client_] - start));
            loss += losses();
        }
        t_.losses[client_ * t_.groups + group_] = loss;
    }

  private:
    const Training& t_;
    Size client_, group_, seen_;
    const Size* inputs_;
    Size unit_, outputs_, widest_;
    std::vector<Size> columns_;  // of a model, for each packed parameter
    Floats memory_;
    std::vector<float*> layers_;  // inputs, then what each layer makes of them
    float *found_, *wanted_, *observed_, *row_, *sums_, *model_, *gradient_, *mean_, *square_;
    Size here_ = 0, used_ = 0;    // rows of the block, and vectors of them

    Size into(Size layer) const { return layer ? t_.width : seen_; }

    void find_columns() {
        const Size features = t_.groups, width = t_.width;
        for (Size layer = 0; layer < t_.layers; ++layer) {
            for (Size u = group_ * width; u < (group_ + 1) * width; ++u)
                for (Size k = 0; k < into(layer); ++k) {
                    if (layer) columns_.push_back(t_.weights[layer] + u * width + k);
                    else if (inputs_[k] < t_.units) columns_.push_back(t_.weights[0] + u * t_.units + inputs_[k]);
                    else columns_.push_back(t_.missing + u * features + inputs_[k] - t_.units);
                }
            for (Size u = group_ * width; u < (group_ + 1) * width; ++u) columns_.push_back(t_.biases[layer] + u);
        }
        for (Size j = 0; j < outputs_ * width; ++j) columns_.push_back(t_.head + unit_ * width + j);
        for (Size j = 0; j < outputs_; ++j) columns_.push_back(t_.last + unit_ + j);
    }

    void pack(const float* models, float* packed) const {
        const float* model = models + client_ * t_.parameters;
        for (size_t j = 0; j < columns_.size(); ++j) packed[j] = model[columns_[j]];
    }

    void unpack(const float* packed, float* models) const {
        float* model = models + client_ * t_.parameters;
        for (size_t j = 0; j < columns_.size(); ++j) model[columns_[j]] = packed[j];
    }

    const float* column(Size number) const { return t_.table + (client_ * t_.columns + number) * t_.rows; }

    // One column of the block's rows, which are those at places, or, without any, those from start on.
    void gather(const float* column, const Size* places, Size start, float* __restrict values) const {
        if (places) {
            for (Size row = 0; row < here_; ++row) values[row] = column[places[start + row]];
        } else {
            std::copy_n(column + start, here_, values);
        }
    }

    void read(const Size* places, Size start) {
        const Size all = used_ * LANES;
        for (Size k = 0; k < seen_; ++k) {
            float* __restrict values = layers_[0] + k * ROWS;
            const bool flag = inputs_[k] >= t_.units;
            const Size unit = flag ? t_.first[inputs_[k] - t_.units] : inputs_[k];
            gather(column(unit), places, start, values);
            const float mean = t_.mean[client_ * t_.units + unit];
            const float scale = 1.0f / t_.deviation[client_ * t_.units + unit];
            if (flag)
                for (Size row = 0; row < here_; ++row) values[row] = values[row] == values[row] ? 0.0f : 1.0f;
            else
                for (Size row = 0; row < here_; ++row) {
                    const float scaled = (values[row] - mean) * scale;
                    values[row] = scaled == scaled ? scaled : 0.0f;
                }
            std::fill(values + here_, values + all, 0.0f);
        }
        // A feature's units are missing together.
        const Size learned = t_.columns - t_.units;
        gather(column(unit_), places, start, row_);
        for (Size o = 0; o < outputs_; ++o) {
            float* values = wanted_ + o * ROWS;
            gather(column(learned + unit_ + o), places, start, values);
            std::fill(values + here_, values + all, 0.0f);
        }
        for (Size row = 0; row < here_; ++row) {
            const float either = row_[row] + wanted_[row];  // not a number if one of them is not
            observed_[row] = either == either ? 1.0f : 0.0f;
        }
        std::fill(observed_ + here_, observed_ + all, 0.0f);
        for (Size o = 0; o < outputs_; ++o) {
            float* values = wanted_ + o * ROWS;
            for (Size row = 0; row < here_; ++row) values[row] = observed_[row] != 0.0f ? values[row] : 0.0f;
        }
    }

    void forward(const Size* places, Size start, Size count) {
        here_ = count;
        used_ = (count + LANES * AT_ONCE - 1) / (LANES * AT_ONCE) * AT_ONCE;
        read(places, start);
        const Size width = t_.width;
        const float* next = model_;
        for (Size layer = 0; seen_ && layer < t_.layers; ++layer) {
            const Size many = into(layer);
            const Weights weights{next, many, 1};
            const float* bias = next + width * many;
            Vector *before = vectors(layers_[layer]), *after = vectors(layers_[layer + 1]);
            product<Rectified>(weights, bias, before, many, after, width, used_);
            next = bias + width;
        }
        if (seen_)
            product<AsItIs>({next, width, 1}, next + outputs_ * width, vectors(layers_.back()), width, vectors(found_),
                            outputs_, used_);
        for (Size o = 0; o < outputs_; ++o) {
            const Size unit = client_ * t_.units + unit_ + o;
            const float base = t_.base[unit], deviation = seen_ ? t_.deviation[unit] : 0.0f;
            float* values = found_ + o * ROWS;
            for (Size row = 0; row < used_ * LANES; ++row)
                values[row] = base + (seen_ ? deviation * values[row] : 0.0f);
        }
    }

    // The largest output of each row, in row_.
    void largest() {
        std::copy_n(found_, used_ * LANES, row_);
        for (Size o = 1; o < outputs_; ++o)
            for (Size row = 0; row < used_ * LANES; ++row) {
                const float value = found_[o * ROWS + row];
                row_[row] = row_[row] < value ? value : row_[row];
            }
    }

    // The sum of the losses of the block's rows.
    double losses() {
        const Size all = used_ * LANES;
        double sum = 0;
        const auto add = [&](float* values) {
            for (Size row = 0; row < all; ++row) values[row] = observed_[row] != 0.0f ? values[row] : 0.0f;
            Vector lanes = {};
            row_sums(vectors(values), 1, &lanes, used_);
            float parts[LANES];
            std::memcpy(parts, &lanes, sizeof parts);
            sum += total<LANES>(parts);
        };
        if (t_.kinds[group_] == CATEGORICAL) {
            largest();
            float* exponentials = layers_.back();
            std::fill_n(exponentials, all, 0.0f);
            for (Size o = 0; o < outputs_; ++o)
                for (Size row = 0; row < all; ++row)
                    exponentials[row] += exponential(found_[o * ROWS + row] - row_[row]);
            for (Size row = 0; row < all; ++row) row_[row] += logarithm(exponentials[row]);
            for (Size o = 0; o < outputs_; ++o)
                for (Size row = 0; row < all; ++row) row_[row] -= wanted_[o * ROWS + row] * found_[o * ROWS + row];
            add(row_);
            return sum;
        }
        for (Size o = 0; o < outputs_; ++o) {
            float *found = found_ + o * ROWS, *wanted = wanted_ + o * ROWS;
            if (t_.kinds[group_] == BINARY)
                for (Size row = 0; row < all; ++row) {
                    const float odds = found[row], above = odds < 0.0f ? 0.0f : odds;
                    found[row] = above + logarithm(1.0f + exponential(odds - 2.0f * above)) - wanted[row] * odds;
                }
            else
                for (Size row = 0; row < all; ++row) {
                    const float error = found[row] - wanted[row];
                    found[row] = error * error;
                }
            add(found);
        }
        return sum;
    }

    // Outputs become how far predictions are too large, times the deviation by which outputs were scaled.
    void errors() {
        const Size all = used_ * LANES;
        if (t_.kinds[group_] == BINARY) {
            for (Size row = 0; row < all; ++row) found_[row] = sigmoid(found_[row]);
        } else if (t_.kinds[group_] == CATEGORICAL) {
            largest();
            for (Size o = 0; o < outputs_; ++o)
                for (Size row = 0; row < all; ++row)
                    found_[o * ROWS + row] = exponential(found_[o * ROWS + row] - row_[row]);
            std::fill_n(row_, all, 0.0f);
            for (Size o = 0; o < outputs_; ++o)
                for (Size row = 0; row < all; ++row) row_[row] += found_[o * ROWS + row];
            for (Size o = 0; o < outputs_; ++o)
                for (Size row = 0; row < all; ++row) found_[o * ROWS + row] /= row_[row];
        }
        for (Size o = 0; o < outputs_; ++o) {
            const float deviation = t_.deviation[client_ * t_.units + unit_ + o];
            float *found = found_ + o * ROWS, *wanted = wanted_ + o * ROWS;
            for (Size row = 0; row < all; ++row)
                found[row] = observed_[row] != 0.0f ? deviation * (found[row] - wanted[row]) : 0.0f;
        }
    }

    // The gradient of a step's mean loss.
    void differentiate(Size step) {
        const Size size = static_cast<Size>(columns_.size());
        const Size* places = t_.places ? t_.places + (step * t_.clients + client_) * t_.batch : nullptr;
        Size count = t_.counts[client_];
        if (places) count = std::find(places, places + t_.batch, Size{-1}) - places;
        std::fill_n(sums_, size * LANES, 0.0f);
        Size counted = 0;
        for (Size start = 0; start < count; start += ROWS) {
            forward(places, start, std::min(ROWS, count - start));
            for (Size row = 0; row < here_; ++row) counted += observed_[row] != 0.0f;
            errors();
            backward();
        }
        const float share = t_.slopes[group_] / static_cast<float>(t_.units);
        const float scale = share / static_cast<float>(std::max<Size>(counted, 1));
        for (Size j = 0; j < size; ++j) gradient_[j] = scale * total<LANES>(sums_ + j * LANES);
    }

    // Adds the block's part of all gradients; what layers made becomes the gradient before their activation.
    void backward() {
        const Size width = t_.width, size = static_cast<Size>(columns_.size());
        Size at = size - outputs_ * (width + 1);
        Vector *sums = vectors(sums_), *gradient = vectors(found_);
        Size leaving = outputs_;
        for (Size layer = t_.layers; layer >= 0; --layer) {
            const Size many = into(layer);
            Vector* before = vectors(layers_[layer]);
            outer(gradient, leaving, before, many, sums + at, used_);
            row_sums(gradient, leaving, sums + at + leaving * many, used_);
            if (layer == 0) return;
            const Weights turned{model_ + at, 1, many};
            product<ThroughRectified>(turned, nullptr, gradient, leaving, before, many, used_);
            gradient = before;
            leaving = width;
            at -= width * (into(layer - 1) + 1);
        }
    }

    // A step of Adam, as in fedgraph.training.optimisers; powers in double: 1 - 0.999^t loses digits in single
    // precision.
    void move(double taken) {
        const float first = static_cast<float>(1.0 - t_.first_beta), second = static_cast<float>(t_.second_beta);
        const float rest = static_cast<float>(1.0 - t_.second_beta), epsilon = t_.epsilon;
        const float root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(t_.second_beta, taken)));
        const float rate = static_cast<float>(t_.rate / (1.0 - std::pow(t_.first_beta, taken)));
        float *__restrict mean = mean_, *__restrict square = square_, *__restrict model = model_;
        const float* __restrict gradient = gradient_;
        const Size size = static_cast<Size>(columns_.size());
        for (Size j = 0; j < size; ++j) {
            mean[j] += first * (gradient[j] - mean[j]);
            square[j] = second * square[j] + rest * gradient[j] * gradient[j];
            model[j] -= rate * mean[j] / (std::sqrt(square[j]) * root + epsilon);
        }
    }
};

void run(const Training& training, std::atomic<Size>& next, std::atomic<bool>& failed) try {
    const Size tasks = training.clients * training.groups;
    for (Size number; (number = next++) < tasks && !failed;) {
        if (!training.active[number / training.groups]) continue;
        Task task(training, number);
        if (training.losses) task.measure();
        else if (training.gradients) task.leave_gradient();
        else task.train();
    }
} catch (const std::bad_alloc&) {
    failed = true;
}

}  // namespace

// 0, or 1 when there is no memory left.
extern "C" int train_network(const Training* training) {
    std::atomic<Size> next{0};
    std::atomic<bool> failed{false};
    std::vector<std::thread> helpers;
    try {
        helpers.reserve(training->threads);
        for (Size number = 1; number < training->threads; ++number)
            helpers.emplace_back([&] { run(*training, next, failed); });
    } catch (const std::system_error&) {  // there are no more threads to be had
    } catch (const std::bad_alloc&) {
    }
    run(*training, next, failed);
    for (std::thread& helper : helpers) helper.join();
    return failed;
}
"""
)
