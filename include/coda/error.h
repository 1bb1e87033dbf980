// The three kinds of failure. A message says where, what was expected, what came, how to fix it:
//   "gemm(swiglu_forward): operand rstd: expected f32[M] with M = 4096 (rows of A), got f32[8192].
//    Pass one value per row of A."
#pragma once

#include <stdexcept>
#include <string>

namespace coda {

/// Base of everything coda throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's mistake: a bad argument, file or program. ValueError in Python; exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A Program that the verifier rejects.
class ProgramError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Driver, BLAS, NVRTC or the operating system failed.
class BackendError : public Error {
 public:
  using Error::Error;
};

/// A defect of coda itself; the message asks for a report.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& what)
      : Error(what +
              ". This is a defect of coda.cpp: please report it with the command that led here.") {}
};

}  // namespace coda
