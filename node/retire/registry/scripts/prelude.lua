--[[
What every script shares: it stands in front of each of them when they are loaded. Not an operation.

Every operation names its tenant's keys in KEYS (all in one hash slot), and takes in ARGV[1] the caller's
term and, in ARGV[2], the incarnation that the caller learned from hello, or '' when it never said hello.

Formats:
  meta     hash: incarnation, term, sequence, events (entries ever appended), tail (id of the last one),
           pinned (blocks reserved), settle_ms (server time until which leases of an older term may run)
  scopes   hash: name -> "term.epoch generation flags policy parent"; flags: '-' or 'p' paused, 'c' cancelled
  children sorted set, score 0: "parent\0child"
  joins    sorted set, score 0: "scope\0node\0boot_id"; boot_id '?': restored by a rebuild, any boot of the node
  leases   hash: node -> "boot_id end_ms boot_id end_ms ..."; end 0: the boot was replaced by a later one
Times are milliseconds of the server's clock. Numbers travel as strings: a Lua number prints only 14 digits.
]]
local EVENTS_MAX = 100000 -- entries of a stream, approximately; a reader further behind resyncs
local FORGET_MS = 86400000 -- a lease that ended this long ago no longer counts as a gate

local function refuse(text)
  return redis.error_reply(text)
end

local function int(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns an error reply when the caller's view of the tenant is not the registry's, else nil.
local function admit(meta)
  local held = redis.call('HMGET', meta, 'term', 'incarnation')
  if not held[1] then
    return refuse('NEEDREGISTER tenant')
  end
  if held[1] ~= ARGV[1] then
    return refuse('TERMMISMATCH term ' .. held[1])
  end
  if ARGV[2] ~= '' and ARGV[2] ~= held[2] then
    return refuse('TERMMISMATCH incarnation ' .. held[2])
  end
end

local function unpack_scope(text)
  local term, epoch, generation, flags, policy, parent =
    string.match(text, '^(%d+)%.(%d+) (%d+) (%S+) (%S+) (.*)$')
  return {
    term = term, epoch = epoch, generation = generation, policy = policy, parent = parent,
    paused = string.find(flags, 'p', 1, true) ~= nil,
    cancelled = string.find(flags, 'c', 1, true) ~= nil,
  }
end

local function version(scope)
  return scope.term .. '.' .. scope.epoch
end

local function pack_scope(scope)
  local flags = (scope.paused and 'p' or '') .. (scope.cancelled and 'c' or '')
  return table.concat({
    version(scope), scope.generation, flags == '' and '-' or flags, scope.policy, scope.parent,
  }, ' ')
end

-- Members of a sorted set that begin with name .. '\0'.
local function below(key, name)
  return redis.call('ZRANGE', key, '[' .. name .. '\0', '(' .. name .. '\1', 'BYLEX')
end

local function joined_nodes(joins, name)
  local nodes = {}
  for _, member in ipairs(below(joins, name)) do
    nodes[#nodes + 1] = string.match(member, '^%Z+%z(%Z+)%z')
  end
  return nodes
end

-- A node's leases as { {boot = ..., end_ms = ...}, ... }, oldest first.
local function read_leases(text)
  local leases = {}
  for boot, end_ms in string.gmatch(text or '', '(%S+) (%d+)') do
    leases[#leases + 1] = { boot = boot, end_ms = tonumber(end_ms) }
  end
  return leases
end

local function write_leases(key, node, leases)
  local parts = {}
  for _, lease in ipairs(leases) do
    parts[#parts + 1] = lease.boot .. ' ' .. int(lease.end_ms)
  end
  redis.call('HSET', key, node, table.concat(parts, ' '))
end

-- Appends one event; n counts entries without a gap, so that a reader notices a trimmed stretch.
local function emit(meta, events, kind, ...)
  local n = redis.call('HINCRBY', meta, 'events', 1)
  local id = redis.call('XADD', events, 'MAXLEN', '~', EVENTS_MAX, '*',
    'event', kind, 'n', int(n), ...)
  redis.call('HSET', meta, 'tail', id)
  return id
end

-- Drops reservations whose lease has ended; returns the blocks still reserved.
local function expire_pins(meta, pins, ends, now)
  local pinned = tonumber(redis.call('HGET', meta, 'pinned') or '0')
  local ended = redis.call('ZRANGE', ends, '-inf', int(now), 'BYSCORE')
  for _, owner in ipairs(ended) do
    pinned = pinned - tonumber(redis.call('HGET', pins, owner))
    redis.call('HDEL', pins, owner)
    redis.call('ZREM', ends, owner)
  end
  if #ended > 0 then
    redis.call('HSET', meta, 'pinned', int(pinned))
  end
  return pinned
end

-- -1, 0 or 1: how two stream ids compare.
local function compare_ids(left, right)
  local left_ms, left_n = string.match(left, '^(%d+)%-(%d+)$')
  local right_ms, right_n = string.match(right, '^(%d+)%-(%d+)$')
  local difference = tonumber(left_ms) - tonumber(right_ms)
  if difference == 0 then
    difference = tonumber(left_n) - tonumber(right_n)
  end
  return difference < 0 and -1 or (difference > 0 and 1 or 0)
end
