// Memory for small objects that are created and destroyed all the time.
#pragma once

#include <cstddef>
#include <new>

namespace amanda {

/// Blocks of memory for small objects, which may be freed on another thread than they were taken on. A large block
/// comes from the global allocator.
///
/// The blocks lie in pages of their own. Between the large buffers of a program they would be obstacles when the
/// allocator joins these again. Memory for the largest number of blocks that were ever in use at once is kept.
void* take_block(size_t size);
/// Frees a block; `size`: the size with which it was taken.
void give_block(void* block, size_t size) noexcept;

/// A base class: objects of `T`, and of classes derived from it, are blocks, unless they need more than the usual
/// alignment.
template <class T>
struct Pooled {
  /// A block.
  static void* operator new(size_t size) { return take_block(size); }
  /// Frees it.
  static void operator delete(void* block, size_t size) noexcept { give_block(block, size); }
  /// A block from the global allocator.
  static void* operator new(size_t size, std::align_val_t alignment) { return ::operator new(size, alignment); }
  /// Frees it.
  static void operator delete(void* block, size_t size, std::align_val_t alignment) noexcept {
    ::operator delete(block, size, alignment);
  }
};

/// An allocator for std::allocate_shared(). The memory is a block.
template <class T>
struct PoolAllocator {
  /// The type of the objects that it allocates.
  using value_type = T;
  PoolAllocator() = default;
  /// All are alike.
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) noexcept {}  // NOLINT: allocators convert
  /// Memory for `count` objects.
  T* allocate(size_t count) { return static_cast<T*>(take_block(count * sizeof(T))); }
  /// Frees it.
  void deallocate(T* block, size_t count) noexcept { give_block(block, count * sizeof(T)); }
  /// Always true: one allocator may free memory that another has allocated.
  template <class U>
  bool operator==(const PoolAllocator<U>&) const noexcept {
    return true;
  }
};

}  // namespace amanda
