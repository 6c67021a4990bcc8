"""C++ of fully connected layers, compiled on the node that trains; see :mod:`fedgraph.models.perceptron_kernel`.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

from fedgraph.models.native.shared_source import PRODUCTS

SOURCE = (
    PRODUCTS
    + r"""
// Fully connected layers, with ReLU between them, and their gradient or steps of gradient descent, client by client:
// what one client needs stays in a core's cache. Matrices are in row-major order. A model is, layer by layer,
// W [size, inputs] and b [size]; a layer computes
//     outputs [batch, size] = inputs [batch, inputs] W^T + b.

#include <algorithm>
#include <cmath>
#include <utility>

namespace {

enum Loss : Size { CROSS_ENTROPY = 0, ABSOLUTE = 1, SQUARED = 2, HUBER = 3 };

struct Perceptron {
    Size clients, steps, batch, layers;
    const Size* sizes;          // of the inputs and of each layer's outputs, [layers + 1]
    float* models;              // [clients, parameters], changed by a descent alone
    Size model_step;            // from client to client
    const Size* rows;           // of the examples, [clients, steps, batch], -1 where there is none; or null: then
                                // minibatches lie one after the other
    const void* inputs;         // as float [clients, steps, batch, sizes[0]], or by rows [examples, sizes[0]]
    Size input_step;            // from client to client: 0 where all have the same
    Size bytes;                 // whether inputs by rows are bytes
    const float *scale, *shift; // of inputs by rows, [sizes[0]] each, or null
    float* gathered;            // inputs of one minibatch by rows, [batch, sizes[0]]
    Size loss;
    const void* targets;        // classes as Size [clients, steps, batch], or numbers as float [..., outputs]; by
                                // rows [examples] and [examples, outputs]
    const float* weights;       // of targets, whose shape they have; by rows all have the same
    float* activations;         // of one client: layer by layer, [batch, size]
    float* slopes;              // of one client, 2 [batch, the largest size of a layer]
    double* sums;               // of weighted losses and of weights, [clients, 2], added to
    float* gradient;            // of the mean loss by the models, whose layout it has, [clients, parameters]; or null:
    const float* rates;         // learning rates of the steps of a descent, [clients, steps]
    float decay;                // weight decay of a descent
    Size parameters;
};

// One client's share of one step.
struct Client {
    const Perceptron& p;
    Size index, step;

    Size minibatch() const { return index * p.steps + step; }
    Size example(Size row) const {  // where its target lies, and its inputs by rows; -1 where there is none
        const Size place = minibatch() * p.batch + row;
        return p.rows ? p.rows[place] : place;
    }
    const float* inputs(Size layer) const {
        if (layer) return outputs(layer - 1);
        if (p.rows) return p.gathered;
        return static_cast<const float*>(p.inputs) + index * p.input_step + step * p.batch * p.sizes[0];
    }
    float* outputs(Size layer) const {
        float* place = p.activations;
        for (Size each = 0; each < layer; ++each) place += p.batch * p.sizes[each + 1];
        return place;
    }
    float* weight(Size layer) const { return p.models + index * p.model_step + before(layer); }
    float* gradient(Size layer) const { return p.gradient + index * p.parameters + before(layer); }

  private:
    Size before(Size layer) const {  // parameters of the layers before it
        Size count = 0;
        for (Size each = 0; each < layer; ++each) count += (p.sizes[each] + 1) * p.sizes[each + 1];
        return count;
    }
};

template <typename Number>
void gather(const Perceptron& p, const Client& client, const Number* examples) {
    const Size size = p.sizes[0];
    for (Size row = 0; row < p.batch; ++row) {
        const Size example = client.example(row);
        float* __restrict found = p.gathered + row * size;
        if (example < 0) {
            std::fill(found, found + size, 0.0f);
            continue;
        }
        const Number* __restrict values = examples + example * size;
        for (Size k = 0; k < size; ++k) found[k] = static_cast<float>(values[k]);
        if (p.scale) for (Size k = 0; k < size; ++k) found[k] *= p.scale[k];
        if (p.shift) for (Size k = 0; k < size; ++k) found[k] += p.shift[k];
    }
}

// Whether the client has examples in the step, which are then gathered where they lie by rows.
bool gathered(const Perceptron& p, const Client& client) {
    if (!p.rows) return true;
    Size there = 0;
    for (Size row = 0; row < p.batch; ++row) there += client.example(row) >= 0;
    if (!there) return false;
    if (p.bytes) gather(p, client, static_cast<const unsigned char*>(p.inputs));
    else gather(p, client, static_cast<const float*>(p.inputs));
    return true;
}

void forward_of(const Perceptron& p, const Client& client) {
    for (Size layer = 0; layer < p.layers; ++layer) {
        const Size from = p.sizes[layer], size = p.sizes[layer + 1];
        const float *weight = client.weight(layer), *bias = weight + size * from;
        float* outputs = client.outputs(layer);
        for (Size row = 0; row < p.batch; ++row) std::copy_n(bias, size, outputs + row * size);
        multiply(p.batch, size, from, plain(client.inputs(layer), from), transpose(weight, from), 1, outputs, size);
        if (layer + 1 == p.layers) break;
        // What is not a number stays so, that a training which diverges is noticed.
        for (Size k = 0; k < p.batch * size; ++k) outputs[k] = outputs[k] < 0.0f ? 0.0f : outputs[k];
    }
}

// The loss of one row of outputs and its weighted derivative; false where a class is not among the outputs.
bool cross_entropy(Size classes, const float* outputs, Size target, float weight, double& loss, float* slopes) {
    if (weight == 0.0f) {
        std::fill(slopes, slopes + classes, 0.0f);
        return true;
    }
    if (target < 0 || target >= classes) return false;
    const float largest = *std::max_element(outputs, outputs + classes);
    float total = 0.0f;
    for (Size k = 0; k < classes; ++k) total += slopes[k] = std::exp(outputs[k] - largest);
    loss += weight * (std::log(total) + largest - outputs[target]);
    const float share = weight / total;
    for (Size k = 0; k < classes; ++k) slopes[k] *= share;
    slopes[target] -= weight;
    return true;
}

// The same of a number.
float deviation(Size kind, float error, float weight, double& loss) {
    if (weight == 0.0f) return 0.0f;  // what is missing may be no number
    const float size = std::fabs(error);
    switch (kind) {
        case ABSOLUTE: loss += weight * size; return error == 0.0f ? 0.0f : std::copysign(weight, error);
        case SQUARED: loss += weight * error * error; return 2.0f * weight * error;
        default:
            loss += weight * (size < 1.0f ? 0.5f * error * error : size - 0.5f);
            return weight * (size < 1.0f ? error : std::copysign(1.0f, error));
    }
}

// slopes [batch, outputs] = the gradient of the client's mean loss by the outputs of its last layer
bool through_loss(const Perceptron& p, const Client& client, float* slopes) {
    const Size outputs = p.sizes[p.layers], all = p.batch * outputs;
    const float* found = client.outputs(p.layers - 1);
    double loss = 0, counted = 0;
    for (Size row = 0; row < p.batch; ++row) {
        const Size example = client.example(row), at = row * outputs;
        if (example < 0) {
            std::fill(slopes + at, slopes + at + outputs, 0.0f);
            continue;
        }
        if (p.loss == CROSS_ENTROPY) {
            const float weight = p.rows ? 1.0f : p.weights[example];
            const Size target = static_cast<const Size*>(p.targets)[example];
            if (!cross_entropy(outputs, found + at, target, weight, loss, slopes + at)) return false;
            counted += weight;
            continue;
        }
        const float* targets = static_cast<const float*>(p.targets) + example * outputs;
        for (Size k = 0; k < outputs; ++k) {
            const float weight = p.rows ? 1.0f : p.weights[example * outputs + k];
            slopes[at + k] = deviation(p.loss, found[at + k] - targets[k], weight, loss);
            counted += weight;
        }
    }
    p.sums[2 * client.index] += loss;
    p.sums[2 * client.index + 1] += counted;
    const float scale = counted == 0 ? 1.0f : static_cast<float>(1 / counted);
    for (Size k = 0; k < all; ++k) slopes[k] *= scale;
    return true;
}

// sums [size] = scale * the sum of rows of values [batch, size] + keep * sums
void add_rows(Size batch, Size size, const float* __restrict values, float keep, float* __restrict sums, float scale) {
    if (keep == 0) std::fill(sums, sums + size, 0.0f);
    else for (Size k = 0; k < size; ++k) sums[k] *= keep;
    for (Size row = 0; row < batch; ++row)
        for (Size k = 0; k < size; ++k) sums[k] += scale * values[row * size + k];
}

// The gradient, or a step down it: W <- (1 - rate decay) W - rate dL/dW, each layer after the one that it feeds.
void backward_of(const Perceptron& p, const Client& client) {
    const Size room = p.batch * *std::max_element(p.sizes + 1, p.sizes + p.layers + 1);
    float *slopes = p.slopes, *next = p.slopes + room;
    const bool descends = !p.gradient;
    const float rate = descends ? p.rates[client.minibatch()] : 0;
    const float keep = descends ? 1 - rate * p.decay : 0, scale = descends ? -rate : 1;
    for (Size layer = p.layers - 1; layer >= 0; --layer) {
        const Size from = p.sizes[layer], size = p.sizes[layer + 1];
        const float* inputs = client.inputs(layer);
        float* found = descends ? client.weight(layer) : client.gradient(layer);
        if (layer) {  // with the weights of before the step
            multiply(p.batch, from, size, plain(slopes, size), plain(client.weight(layer), from), 0, next, from);
            for (Size k = 0; k < p.batch * from; ++k) next[k] = inputs[k] <= 0.0f ? 0.0f : next[k];
        }
        multiply(size, from, p.batch, transpose(slopes, size), plain(inputs, from), keep, found, from, scale);
        add_rows(p.batch, size, slopes, keep, found + size * from, scale);
        std::swap(slopes, next);
    }
}

}  // namespace

// 0, or 1 when a target is a class for which there is no output.
extern "C" int perceptron(const Perceptron* perceptron) {
    const Perceptron& p = *perceptron;
    for (Size index = 0; index < p.clients; ++index)
        for (Size step = 0; step < p.steps; ++step) {
            const Client client{p, index, step};
            if (!gathered(p, client)) continue;
            forward_of(p, client);
            if (!through_loss(p, client, p.slopes)) return 1;
            backward_of(p, client);
        }
    return 0;
}
"""
)
