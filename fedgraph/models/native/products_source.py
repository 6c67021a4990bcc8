"""Products of matrices in C++ by PyTorch's own BLAS, for the sources that include them.

It is a Python file because Flower's app bundle carries no other kind of source.
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

// result [rows, columns] = left [rows, inner] right [inner, columns] + keep * result
void multiply(Size rows, Size columns, Size inner, Matrix left, Matrix right, float keep, float* result, Size step) {
    // BLAS counts column by column, in which every matrix is its transpose: result^T = right^T left^T.
    const char forms[] = {'N', 'T'};
    const float one = 1;
    sgemm_(&forms[right.transposed], &forms[left.transposed], &columns, &rows, &inner, &one, right.values, &right.step,
           left.values, &left.step, &keep, result, &step);
}

}  // namespace
"""
