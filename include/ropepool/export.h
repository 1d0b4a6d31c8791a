// ROPEPOOL_API marks what the shared library exports; everything else is hidden.
#pragma once

#if defined(_WIN32)
#if defined(ROPEPOOL_BUILDING)
#define ROPEPOOL_API __declspec(dllexport)
#else
#define ROPEPOOL_API __declspec(dllimport)
#endif
#else
#define ROPEPOOL_API __attribute__((visibility("default")))
#endif
