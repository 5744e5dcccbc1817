// All headers that a tool author needs.
/// @namespace amanda
/// Tools, scopes and actions; and the seam: the interfaces that drivers implement and call.
#pragma once

#include "amanda/action.h"
#include "amanda/description.h"
#include "amanda/driver/backend.h"  // Backend::describe(), which tools call
#include "amanda/error.h"
#include "amanda/filter.h"
#include "amanda/log.h"
#include "amanda/op.h"
#include "amanda/op_context.h"
#include "amanda/scope.h"
#include "amanda/tool.h"
#include "amanda/value.h"
#include "amanda/version.h"
