--[[
Write the tenant anew under a higher term. Epochs move upward only: what is held and higher stays.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] children  KEYS[4] joins  KEYS[5] quota  KEYS[6] events
ARGV[1] term, higher than the one held
ARGV[2] incarnation to write; asking again with the same one changes nothing
ARGV[3] quota in blocks, or '' for unlimited
ARGV[4] highest commit sequence that a node has seen
ARGV[5] how long a lease of an older term can still run, in milliseconds
ARGV[6] scopes, JSON: a list of lists (name, epoch, generation, paused '1' or '0', cancelled, policy or
        '-', parent or '', list of nodes)
Returns the incarnation.
Errors: TERMMISMATCH term <held> (not lower than ARGV[1])
]]
local held = redis.call('HMGET', KEYS[1], 'term', 'incarnation', 'sequence')
if held[2] == ARGV[2] then
  return ARGV[2]
end
if held[1] and tonumber(held[1]) >= tonumber(ARGV[1]) then
  return refuse('TERMMISMATCH term ' .. held[1])
end
if ARGV[3] == '' then
  redis.call('DEL', KEYS[5])
else
  redis.call('SET', KEYS[5], ARGV[3])
end

local scopes = {}
local stored = redis.call('HGETALL', KEYS[2])
for at = 1, #stored, 2 do
  scopes[stored[at]] = unpack_scope(stored[at + 1])
end
for _, given in ipairs(cjson.decode(ARGV[6])) do
  local name, epoch, generation, paused, cancelled, policy, parent, nodes = unpack(given)
  local scope = scopes[name] or { epoch = '0', generation = '0', cancelled = false, policy = '-', parent = '' }
  scopes[name] = {
    epoch = int(math.max(tonumber(epoch), tonumber(scope.epoch))),
    generation = int(math.max(tonumber(generation), tonumber(scope.generation))),
    paused = paused == '1', cancelled = cancelled == '1' or scope.cancelled,
    -- Whoever gives no policy may not know it; a parent never changes.
    policy = policy ~= '-' and policy or scope.policy,
    parent = scope.parent ~= '' and scope.parent or parent,
  }
  for _, node in ipairs(nodes) do
    redis.call('ZADD', KEYS[4], 0, table.concat({ name, node, '?' }, '\0'))
  end
end
for name, scope in pairs(scopes) do
  scope.term = ARGV[1]
  redis.call('HSET', KEYS[2], name, pack_scope(scope))
  if scope.parent ~= '' then
    redis.call('ZADD', KEYS[3], 0, scope.parent .. '\0' .. name)
  end
end
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'incarnation', ARGV[2],
  'sequence', int(math.max(tonumber(held[3] or '0'), tonumber(ARGV[4]))),
  'settle_ms', int(now_ms() + tonumber(ARGV[5])))
emit(KEYS[1], KEYS[6], 'rebuild', 'term', ARGV[1], 'incarnation', ARGV[2])
return ARGV[2]
