"""C++ of the recurrent layer, compiled on the node that trains; see :mod:`fedgraph.models.recurrence_kernel`.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

from fedgraph.models.native.shared_source import MATH, PRODUCTS

SOURCE = (
    MATH
    + PRODUCTS
    + r"""
// A recurrent layer over a whole sequence, and its gradient, client by client: what one client needs stays in a core's
// cache. Matrices are in row-major order. One time step of a cell computes
//     product = joint M^T,   joint = [hidden | input | 1]   (one row per example),
// then element-wise work. A cell may keep the input's part of its candidate apart: entry = [input | 1] E^T.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace {

enum Cell : Size { TANH = 0, GRU = 1, LSTM = 2 };

// ---------------------------------------------------------------------------------------------------------- the layer

struct Layer {
    Size cell, clients, steps, batch, features, hidden;
    Size gates;         // columns of a product
    Size width;         // columns of a joint: hidden + features + 1
    const float* matrix;        // M [clients, gates, width]
    const float* entry_matrix;  // E [clients, hidden, features + 1], or null
    const float* inputs;        // [clients, steps, batch, features] with the strides below
    Size input_strides[4];
    float* joint;               // [clients, steps + 1, batch, width]; step t reads [t] and leaves its hidden in [t + 1]
    float* product;             // [clients, steps, batch, gates], activated
    Size product_strides[2];    // from client to client and from step to step: 0 where a place is used again
    float* entry;               // [clients, steps, batch, hidden], activated, or null
    Size entry_strides[2];
    float* memory;              // [clients, steps + 1, batch, hidden], or null
    Size memory_strides[2];
};

struct Gradients {
    const float* outputs;  // [clients, batch, hidden] after the last step, or [clients, steps, batch, hidden]
    Size every_step;       // which of the two
    float* matrix;         // [clients, gates, width]
    float* entry_matrix;   // [clients, hidden, features + 1], or null
    float* inputs;         // [clients, steps, batch, features], or null when nobody asks
};

// One client's share of a layer.
struct Client {
    const Layer& layer;
    Size index;

    float* joint(Size step) const {
        return layer.joint + (index * (layer.steps + 1) + step) * layer.batch * layer.width;
    }
    float* product(Size step) const { return place(layer.product, layer.product_strides, step); }
    float* entry(Size step) const { return place(layer.entry, layer.entry_strides, step); }
    float* memory(Size step) const { return place(layer.memory, layer.memory_strides, step); }
    const float* matrix() const { return layer.matrix + index * layer.gates * layer.width; }
    const float* entry_matrix() const { return layer.entry_matrix + index * layer.hidden * (layer.features + 1); }

  private:
    float* place(float* tensor, const Size* strides, Size step) const {
        return tensor ? tensor + index * strides[0] + step * strides[1] : nullptr;
    }
};

// Working memory that a thread keeps from call to call.
class Workspace {
  public:
    float* floats(Size count) {
        if (count > held_) {
            memory_.reset();
            held_ = 0;
            memory_.reset(static_cast<float*>(::operator new(count * sizeof(float), alignment)));
            held_ = count;
        }
        return memory_.get();
    }

  private:
    static constexpr std::align_val_t alignment{64};
    struct Free {
        void operator()(float* memory) const { ::operator delete(memory, alignment); }
    };
    std::unique_ptr<float, Free> memory_;
    Size held_ = 0;
};

// to [columns, rows] = from^T, where from is [rows, columns]
void write_transposed(const float* __restrict from, Size rows, Size columns, float* __restrict to) {
    constexpr Size tile = 16;
    for (Size first = 0; first < rows; first += tile)
        for (Size column = 0; column < columns; ++column)
            for (Size row = first; row < std::min(first + tile, rows); ++row)
                to[column * rows + row] = from[row * columns + column];
}

// ------------------------------------------------------------------------------------------------- one row of one step

// h' = tanh(product)
void tanh_forward(Size size, const float* __restrict product, float* __restrict next) {
    for (Size j = 0; j < size; ++j) next[j] = tanh_of(product[j]);
}

void tanh_backward(Size size, const float* __restrict next, const float* __restrict grad_hidden,
                   float* __restrict grad_product) {
    for (Size j = 0; j < size; ++j) grad_product[j] = grad_hidden[j] * (1 - next[j] * next[j]);
}

// r = sigmoid, z = sigmoid, n = tanh(x_n + r h_n), h' = (1 - z) n + z h; product holds r, z, h_n and entry x_n.
void gru_forward(Size size, float* __restrict product, float* __restrict entry, const float* __restrict hidden,
                 float* __restrict next) {
    float *reset = product, *update = product + size, *part = product + 2 * size;
    for (Size j = 0; j < size; ++j) {
        const float r = sigmoid(reset[j]), z = sigmoid(update[j]);
        const float n = tanh_of(entry[j] + r * part[j]);
        next[j] = n + z * (hidden[j] - n);
        reset[j] = r, update[j] = z, entry[j] = n;
    }
}

// grad_hidden becomes what reaches h other than through M.
void gru_backward(Size size, const float* __restrict product, const float* __restrict entry,
                  const float* __restrict next, float* __restrict grad_hidden, float* __restrict grad_product,
                  float* __restrict grad_entry) {
    const float *reset = product, *update = product + size, *part = product + 2 * size;
    for (Size j = 0; j < size; ++j) {
        const float r = reset[j], n = entry[j];
        const float kept = grad_hidden[j] * update[j], changed = grad_hidden[j] - kept;
        const float grad_n = changed * (1 - n * n), grad_part = grad_n * r;
        grad_hidden[j] = kept;
        grad_entry[j] = grad_n;
        grad_product[j] = grad_part * part[j] * (1 - r);
        grad_product[size + j] = changed * (next[j] - n);  // z (h - n) = h' - n
        grad_product[2 * size + j] = grad_part;
    }
}

// i, f, o = sigmoid, g = tanh, c' = f c + i g, h' = o tanh(c'); the memory c and c' may be one place.
void lstm_forward(Size size, float* __restrict product, const float* memory, float* next_memory,
                  float* __restrict next) {
    float *in = product, *forget = product + size, *out = product + 2 * size, *candidate = product + 3 * size;
#pragma GCC ivdep
    for (Size j = 0; j < size; ++j) {
        const float i = sigmoid(in[j]), f = sigmoid(forget[j]), o = sigmoid(out[j]), g = tanh_of(candidate[j]);
        const float c = f * memory[j] + i * g;
        next[j] = o * tanh_of(c);
        next_memory[j] = c;
        in[j] = i, forget[j] = f, out[j] = o, candidate[j] = g;
    }
}

// grad_memory becomes what reaches c.
void lstm_backward(Size size, const float* __restrict product, const float* __restrict memory,
                   const float* __restrict next_memory, const float* __restrict grad_hidden,
                   float* __restrict grad_memory, float* __restrict grad_product) {
    const float *in = product, *forget = product + size, *out = product + 2 * size, *candidate = product + 3 * size;
    for (Size j = 0; j < size; ++j) {
        const float i = in[j], f = forget[j], o = out[j], g = candidate[j];
        const float squashed = tanh_of(next_memory[j]);
        const float grad_c = grad_memory[j] + grad_hidden[j] * o * (1 - squashed * squashed);
        grad_memory[j] = grad_c * f;
        grad_product[j] = grad_c * g * i * (1 - i);
        grad_product[size + j] = grad_c * memory[j] * f * (1 - f);
        grad_product[2 * size + j] = grad_hidden[j] * squashed * o * (1 - o);
        grad_product[3 * size + j] = grad_c * i * (1 - g * g);
    }
}

// --------------------------------------------------------------------------------------------------------- whole steps

// Zeros as the first hidden state, the inputs of every step, and ones for the bias.
void fill_joint(const Client& client) {
    const Layer& layer = client.layer;
    const Size* strides = layer.input_strides;
    const float* inputs = layer.inputs + client.index * strides[0];
    for (Size step = 0; step < layer.steps; ++step)
        for (Size example = 0; example < layer.batch; ++example) {
            float* row = client.joint(step) + example * layer.width;
            const float* input = inputs + step * strides[1] + example * strides[2];
            if (step == 0) std::fill_n(row, layer.hidden, 0.0f);
            for (Size feature = 0; feature < layer.features; ++feature)
                row[layer.hidden + feature] = input[feature * strides[3]];
            row[layer.width - 1] = 1;
        }
}

void activate(const Client& client, Size step) {
    const Layer& layer = client.layer;
    const Size size = layer.hidden;
    float *product = client.product(step), *entry = client.entry(step);
    float *memory = client.memory(step), *next_memory = client.memory(step + 1);
    float *joint = client.joint(step), *next = client.joint(step + 1);
    for (Size example = 0; example < layer.batch; ++example) {
        float* row = product + example * layer.gates;
        float* next_row = next + example * layer.width;
        if (layer.cell == TANH)
            tanh_forward(size, row, next_row);
        else if (layer.cell == GRU)
            gru_forward(size, row, entry + example * size, joint + example * layer.width, next_row);
        else
            lstm_forward(size, row, memory + example * size, next_memory + example * size, next_row);
    }
}

// grad_product and grad_entry of a step, [batch, gates] and [batch, hidden].
void differentiate(const Client& client, Size step, float* grad_hidden, float* grad_memory, float* grad_product,
                   float* grad_entry) {
    const Layer& layer = client.layer;
    const Size size = layer.hidden;
    const float *product = client.product(step), *entry = client.entry(step);
    const float *memory = client.memory(step), *next_memory = client.memory(step + 1);
    const float* next = client.joint(step + 1);
    for (Size example = 0; example < layer.batch; ++example) {
        const Size at = example * size, gate_at = example * layer.gates;
        const float* next_row = next + example * layer.width;
        if (layer.cell == TANH)
            tanh_backward(size, next_row, grad_hidden + at, grad_product + gate_at);
        else if (layer.cell == GRU)
            gru_backward(size, product + gate_at, entry + at, next_row, grad_hidden + at, grad_product + gate_at,
                         grad_entry + at);
        else
            lstm_backward(size, product + gate_at, memory + at, next_memory + at, grad_hidden + at, grad_memory + at,
                          grad_product + gate_at);
    }
}

void forward_of(const Client& client, float* workspace) {
    const Layer& layer = client.layer;
    const Size into = layer.features + 1, size = layer.hidden, gates = layer.gates, width = layer.width;
    float* turned = workspace;  // M^T [width, gates], which BLAS reads faster
    float* turned_entry = turned + width * gates;
    write_transposed(client.matrix(), gates, width, turned);
    if (layer.entry_matrix) write_transposed(client.entry_matrix(), size, into, turned_entry);
    if (layer.memory) std::fill_n(client.memory(0), layer.batch * size, 0.0f);
    fill_joint(client);
    for (Size step = 0; step < layer.steps; ++step) {
        const float* joint = client.joint(step);
        const Size from = step ? 0 : size;  // the first hidden state is zero
        multiply(layer.batch, gates, width - from, plain(joint + from, width), plain(turned + from * gates, gates), 0,
                 client.product(step), gates);
        if (layer.entry_matrix)
            multiply(layer.batch, size, into, plain(joint + size, width), plain(turned_entry, size), 0,
                     client.entry(step), size);
        activate(client, step);
    }
}

Size forward_floats(const Layer& layer) {
    return layer.width * layer.gates + layer.hidden * (layer.features + 1);
}

void backward_of(const Client& client, const Gradients& grad, float* workspace) {
    const Layer& layer = client.layer;
    const Size into = layer.features + 1, size = layer.hidden, gates = layer.gates, width = layer.width;
    const Size states = layer.batch * size, examples = layer.steps * layer.batch;
    float* grad_hidden = workspace;                       // [batch, hidden]
    float* grad_memory = grad_hidden + states;            // [batch, hidden]
    float* grad_products = grad_memory + states;          // [steps, batch, gates]
    float* grad_entries = grad_products + examples * gates;  // [steps, batch, hidden]
    float* turned = grad_entries + examples * size;       // gradient of M^T [width, gates]

    const float* outputs = grad.outputs + client.index * states * (grad.every_step ? layer.steps : 1);
    std::copy_n(outputs + (grad.every_step ? (layer.steps - 1) * states : 0), states, grad_hidden);
    std::fill_n(grad_memory, states, 0.0f);
    for (Size step = layer.steps - 1; step >= 0; --step) {
        float* grad_product = grad_products + step * layer.batch * gates;
        float* grad_entry = grad_entries + step * states;
        differentiate(client, step, grad_hidden, grad_memory, grad_product, grad_entry);
        if (grad.inputs) {
            float* found = grad.inputs + (client.index * layer.steps + step) * layer.batch * layer.features;
            multiply(layer.batch, layer.features, gates, plain(grad_product, gates),
                     plain(client.matrix() + size, width), 0, found, layer.features);
            if (layer.entry_matrix)
                multiply(layer.batch, layer.features, size, plain(grad_entry, size),
                         plain(client.entry_matrix(), into), 1, found, layer.features);
        }
        if (step == 0) break;
        const bool bypass = layer.cell == GRU;  // grad_hidden holds what goes past M
        multiply(layer.batch, size, gates, plain(grad_product, gates), plain(client.matrix(), width), bypass,
                 grad_hidden, size);
        if (grad.every_step)
            for (Size j = 0; j < states; ++j) grad_hidden[j] += outputs[(step - 1) * states + j];
    }
    // The gradients of all steps in one product each; BLAS writes the transposed ones faster.
    multiply(width, gates, examples, transpose(client.joint(0), width), plain(grad_products, gates), 0, turned, gates);
    write_transposed(turned, width, gates, grad.matrix + client.index * gates * width);
    if (layer.entry_matrix) {
        multiply(into, size, examples, transpose(client.joint(0) + size, width), plain(grad_entries, size), 0, turned,
                 size);
        write_transposed(turned, into, size, grad.entry_matrix + client.index * size * into);
    }
}

Size backward_floats(const Layer& layer) {
    return 2 * layer.batch * layer.hidden + layer.steps * layer.batch * (layer.gates + layer.hidden) +
           layer.width * layer.gates;
}

thread_local Workspace workspace;

}  // namespace

// 0, or 1 when there is no memory left.
extern "C" int recurrent_forward(const Layer* layer) try {
    float* memory = workspace.floats(forward_floats(*layer));
    for (Size client = 0; client < layer->clients; ++client) forward_of({*layer, client}, memory);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

extern "C" int recurrent_backward(const Layer* layer, const Gradients* gradients) try {
    float* memory = workspace.floats(backward_floats(*layer));
    for (Size client = 0; client < layer->clients; ++client) backward_of({*layer, client}, *gradients, memory);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}
"""
)
