"""C++ that several sources include: element-wise functions, matrix products by PyTorch's own BLAS, a step of Adam.

The functions are written so that a compiler can vectorise them. It is a Python file because Flower's app bundle carries
no other kind of source.
"""

MATH = r"""
// ---------------------------------------------------------------------------------------------- element-wise functions

#include <cstdint>
#include <cstring>

namespace {

inline float as_float(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline int32_t as_bits(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float limited(float x, float low, float high) {  // not a number stays what it is
    x = x < low ? low : x;
    return x > high ? high : x;
}

// e^x = 2^n e^r with |r| <= log(2) / 2, where e^r is a polynomial; to 2 units in the last place.
inline float exponential(float x) {
    x = limited(x, -87.0f, 88.0f);
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, in the lowest bits
    const float rounded = x * 1.44269504f + shift;
    const float n = rounded - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float e = 1.9875691500e-4f;  // coefficients: Cephes, expf
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    return e * as_float((as_bits(rounded) - as_bits(shift) + 127) << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// log x = n log(2) + log(m) for positive normal x = 2^n m with m from sqrt(1/2) to sqrt(2); to 2 units in the last
// place. What is not a number, or infinite, stays what it is.
inline float logarithm(float x) {
    const int32_t root = as_bits(0.707106781f);
    const int32_t n = (as_bits(x) - root) >> 23;
    const float r = as_float(as_bits(x) - (n << 23)) - 1.0f, s = r * r, exponent = static_cast<float>(n);
    float p = 7.0376836292e-2f;  // coefficients: Cephes, logf
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    const float found = (p * r * s - 2.12194440e-4f * exponent - 0.5f * s + r) + 0.693359375f * exponent;
    return x - x == 0.0f ? found : x;
}

// tanh x = x P(x^2) / Q(x^2), whose limits are where float32 reaches 1; to 4 units in the last place.
inline float tanh_of(float x) {
    x = limited(x, -7.90531110763549805f, 7.90531110763549805f);
    const float s = x * x;
    float p = -2.76076847742355e-16f;  // coefficients: Eigen, ptanh
    p = p * s + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return x * p / q;
}

}  // namespace
"""


PRODUCTS = r"""
// ---------------------------------------------------------------------------------------------------- matrix products

#include <cstdint>

// PyTorch's own BLAS. Sizes of 64 bits are read rightly by a library of 32 bits too, as the low half comes first.
extern "C" void sgemm_(const char* left_form, const char* right_form, const int64_t* rows, const int64_t* columns,
                       const int64_t* inner, const float* scale, const float* left, const int64_t* left_step,
                       const float* right, const int64_t* right_step, const float* keep, float* result,
                       const int64_t* result_step);

namespace {

using Size = int64_t;

struct Matrix {
    const float* values;
    Size step;        // from row to row
    bool transposed;  // whether the factor is the transpose of what lies in memory
};

Matrix plain(const float* values, Size step) { return {values, step, false}; }
Matrix transpose(const float* values, Size step) { return {values, step, true}; }

// result [rows, columns] = scale * left [rows, inner] right [inner, columns] + keep * result
void multiply(Size rows, Size columns, Size inner, Matrix left, Matrix right, float keep, float* result, Size step,
              float scale = 1) {
    // BLAS counts column by column, in which every matrix is its transpose: result^T = right^T left^T.
    const char forms[] = {'N', 'T'};
    sgemm_(&forms[right.transposed], &forms[left.transposed], &columns, &rows, &inner, &scale, right.values,
           &right.step, left.values, &left.step, &keep, result, &step);
}

}  // namespace
"""


ADAM = r"""
// --------------------------------------------------------------------------------------------------------------- Adam

#include <cmath>
#include <cstdint>

namespace {

using Size = int64_t;

struct AdamSettings {
    Size decoupled;        // whether weight decay goes past the moments, as in AdamW
    double first, second;  // betas
    double rate;           // learning rate
    double epsilon, decay;
};

// One model's step: what all of its numbers share.
class Adam {
  public:
    // steps: how many the moments have seen, this one included. Powers in double: 1 - 0.999^t loses digits in float.
    Adam(const AdamSettings& settings, double rate, double steps)
        : mean_part_(static_cast<float>(1.0 - settings.first)), second_(static_cast<float>(settings.second)),
          square_part_(static_cast<float>(1.0 - settings.second)),
          mean_scale_(static_cast<float>(rate / (1.0 - std::pow(settings.first, steps)))),
          root_scale_(static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(settings.second, steps)))),
          epsilon_(static_cast<float>(settings.epsilon)),
          coupled_(settings.decoupled ? 0.0f : static_cast<float>(settings.decay)),
          kept_(settings.decoupled ? static_cast<float>(1.0 - rate * settings.decay) : 1.0f) {}

    void move(float& parameter, float gradient, float& mean, float& square) const {
        gradient += coupled_ * parameter;
        const float m = mean + mean_part_ * (gradient - mean);
        const float v = second_ * square + square_part_ * gradient * gradient;
        mean = m;
        square = v;
        parameter = kept_ * parameter - mean_scale_ * m / (std::sqrt(v) * root_scale_ + epsilon_);
    }

  private:
    float mean_part_, second_, square_part_, mean_scale_, root_scale_, epsilon_, coupled_, kept_;
};

}  // namespace
"""
