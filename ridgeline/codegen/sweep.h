/* One kernel over many tensors, in one parallel region: what an optimizer step or a norm of all gradients needs.
 *
 * Tensor r has `width` pointers, rows[r * width + k]. Piece i is (r, first, count): elements first ... first + count - 1
 * of tensor r. Buffer k of a piece begins first * strides[k] bytes into its tensor; strides[k] is 0 for a number that
 * all of the tensor shares, and negative for a result per piece, which begins i * -strides[k] bytes in.
 */
int ridgeline_sweep(int (*function)(void **, const int64_t *), int64_t width, const int64_t *strides, char **rows,
                    int64_t count, const int64_t *pieces, int64_t parallel) {
    int failed = 0;
    (void)parallel;
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (parallel)
    for (int64_t i = 0; i < count; i++) {
        const int64_t *const piece = pieces + 3 * i;
        void *buffers[width];
        for (int64_t k = 0; k < width; k++) {
            const int64_t move = strides[k] < 0 ? i * -strides[k] : piece[1] * strides[k];
            buffers[k] = rows[piece[0] * width + k] + move;
        }
        failed |= function(buffers, piece + 2);
    }
    return failed;
}
